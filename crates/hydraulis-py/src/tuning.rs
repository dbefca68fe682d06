//! `uniform_plans`: one scheme for all replicas, for sequences of one length.

use hydraulis_core::Tokens;
use hydraulis_core::cost::CostModel;
use hydraulis_core::spec::MemoryRule;
use hydraulis_core::tuning;
use pyo3::prelude::*;

use crate::convert::errors::raise;
use crate::convert::gil::interruptible;
use crate::convert::integers::Integer;
use crate::cost::profile::CostProfile;
use crate::spec::Cluster;

/// Returns the fastest plan of each scheme that admits a length, the fastest scheme first.
///
/// All replicas of a plan have one scheme. The cluster's best ranks stand for all.
///
/// Args:
///     profile: Costs of the schemes.
///     cluster: Cluster, on which as many replicas run as fit.
///     length: Tokens of every sequence.
///     sequences: Number of sequences of an iteration.
///     memory: Memory rule, as for `Planner`.
///
/// Returns:
///     For each plan the strategy, the sequences of each micro-batch of the replica with the most sequences, and the
///     iteration time in ms.
///
/// Raises:
///     InvalidInputError: A number is below 1, or the rule is unknown (code `argument_invalid`).
#[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
#[pyfunction]
#[pyo3(signature = (profile, cluster, length, sequences, *, memory="per_micro_batch"))]
pub(crate) fn uniform_plans(
    py: Python<'_>,
    profile: &CostProfile,
    cluster: &Cluster,
    length: Integer,
    sequences: Integer,
    memory: &str,
) -> PyResult<Vec<(String, Vec<u64>, f64)>> {
    let (length, sequences) = (Tokens(length.positive(py, "length")?), sequences.positive(py, "sequences")?);
    let memory: MemoryRule = memory.parse().map_err(|error| raise(py, &error))?;
    let (profile, cluster) = (profile.0.clone(), cluster.0.clone());
    interruptible(py, move |cancellation| {
        let costs = CostModel::new(profile, cluster).with_memory(memory);
        costs.check_devices()?;
        let plans = tuning::uniform_plans(&costs, length, sequences, cancellation)?.into_iter();
        Ok(plans
            .map(|plan| (format!("{}x{}", plan.replicas, plan.scheme), plan.micro_batches, plan.iteration_ms.0))
            .collect())
    })
}
