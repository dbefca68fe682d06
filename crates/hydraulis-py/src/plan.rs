//! `Plan` and its replicas.

use hydraulis_core::spec::ContextKind;
use hydraulis_core::{Millis, Tokens};
use hydraulis_core::{cost, explain, layout, pipeline, plan};
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::convert::arrays::{Column, offsets};
use crate::convert::gil::detached;
use crate::convert::integers::Integer;
use crate::convert::text::Text;
use crate::convert::{Reduced, made_by};
use crate::layout::table::Position;
use crate::pipeline::{Span, instruction, spans};
use crate::spec::{Cluster, Scheme};

/// An immutable plan of one iteration: strategy, placement, dispatch, packing, predicted times and lower bound.
#[pyclass(frozen, module = "hydraulis")]
#[derive(Debug)]
pub(crate) struct Plan {
    core: plan::Plan,
    positions: Vec<Option<layout::Position>>,
    lengths: Column,
    targets: Column,
    sequences: Column,
    micro_batch_offsets: Column,
    replica_offsets: Column,
}

/// One replica of a plan.
#[pyclass(frozen, get_all, module = "hydraulis")]
#[derive(Debug)]
pub(crate) struct Replica {
    /// Scheme of the replica.
    scheme: Py<Scheme>,
    /// Kind of context parallelism, `ulysses` or `ring`; None where cp is 1.
    context: Option<&'static str>,
    /// Ranks, by stage, then by context rank, then in tensor order.
    ranks: Vec<u32>,
    /// The same ranks, one list per stage.
    stages: Vec<Vec<u32>>,
    /// Sequence ids of each micro-batch, in running order; an idle replica has no micro-batches. Under the in-flight
    /// limit an empty micro-batch may separate two that do not fit into memory together.
    micro_batches: Vec<Vec<usize>>,
    /// Token cap of a micro-batch; under the in-flight limit the mean over as many micro-batches as there are stages.
    cap_tokens: u64,
    /// Mean computing time of its stages, in ms.
    busy_ms: f64,
    /// End of its last backward, in ms.
    predicted_ms: f64,
    /// Expected relative error of its times, and extrapolation factor beyond the measured micro-batches; None if the
    /// profile does not state them.
    reliability: Option<(f64, f64)>,
}

/// Scheme, context, ranks, micro-batches, cap and times, prediction error and extrapolation factor.
type ReplicaFields = (Py<Scheme>, Option<String>, Vec<u32>, Vec<Vec<usize>>, (u64, f64, f64), Option<(f64, f64)>);

impl Plan {
    pub(crate) fn new(py: Python<'_>, plan: plan::Plan) -> Plan {
        let micro_batches = || plan.replicas.iter().flat_map(|replica| &replica.micro_batches);
        Plan {
            positions: plan.positions(),
            lengths: Column::from_counts(py, plan.batch.tokens().iter().map(|tokens| tokens.0)),
            targets: Column::from_counts(py, plan.batch.targets().iter().copied()),
            sequences: Column::from_counts(py, plan.sequences()),
            micro_batch_offsets: Column::from_counts(py, offsets(micro_batches().map(Vec::len))),
            replica_offsets: Column::from_counts(py, offsets(plan.replicas.iter().map(|r| r.micro_batches.len()))),
            core: plan,
        }
    }

    pub(crate) fn inner(&self) -> &plan::Plan {
        &self.core
    }

    /// The positions of the ranks of some replicas alone.
    pub(crate) fn positions_of(&self, replicas: &[bool]) -> Vec<Option<layout::Position>> {
        let mut positions = vec![None; self.core_positions().len()];
        for (replica, _) in self.core.replicas.iter().zip(replicas).filter(|&(_, &is_meant)| is_meant) {
            for &rank in &replica.ranks {
                positions[rank as usize] = self.core_positions()[rank as usize];
            }
        }
        positions
    }

    pub(crate) fn core_positions(&self) -> &[Option<layout::Position>] {
        &self.positions
    }

    /// The replica that contains `rank`; None for a rank without work.
    fn replica_of(&self, rank: u32) -> Option<&plan::ReplicaPlan> {
        self.core.replicas.iter().find(|replica| replica.ranks.contains(&rank))
    }
}

/// Extrapolation to a micro-batch beyond the profile's measurements; `str()` gives it as a sentence.
#[pyclass(frozen, from_py_object, module = "hydraulis")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extrapolation(pub(crate) plan::Extrapolation);

#[pymethods]
impl Extrapolation {
    /// Scheme of the micro-batch, as text.
    #[getter]
    fn scheme(&self) -> String {
        self.0.scheme.to_string()
    }

    /// Size of the micro-batch relative to the largest measured one; above 1.
    #[getter]
    fn beyond(&self) -> f64 {
        self.0.factor
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        made_by::<Extrapolation>(py, "_of", (Scheme(self.0.scheme), self.0.factor))
    }

    #[classmethod]
    fn _of(_class: &Bound<'_, PyType>, fields: (Py<Scheme>, f64)) -> Extrapolation {
        let (scheme, factor) = fields;
        Extrapolation(plan::Extrapolation { scheme: scheme.get().0, factor })
    }

    fn __repr__(&self) -> String {
        format!("Extrapolation('{}', {:.2} times as far as measured)", self.0.scheme, self.0.factor)
    }
}

#[pymethods]
impl Plan {
    /// Reads the JSON form.
    #[classmethod]
    fn from_json(_class: &Bound<'_, PyType>, py: Python<'_>, text: Text<'_>) -> PyResult<Plan> {
        let plan = detached(py, || plan::Plan::from_json(&text))?;
        Ok(Plan::new(py, plan))
    }

    /// Returns the JSON form, on one line.
    fn to_json(&self) -> String {
        self.core.to_json()
    }

    /// Returns a readable account: the strategy and its reason, each replica's work, and the limit on the time.
    fn explain(&self) -> String {
        explain::explain(&self.core)
    }

    /// The extrapolation furthest beyond the profile's measurements; None if there is none, or the profile states no
    /// range.
    #[getter]
    fn extrapolation(&self) -> Option<Extrapolation> {
        self.core.extrapolation().map(Extrapolation)
    }

    /// Strategy as text.
    #[getter]
    fn strategy(&self) -> String {
        self.core.strategy.to_string()
    }

    /// Cluster of the plan.
    #[getter]
    fn cluster(&self) -> Cluster {
        Cluster(self.core.cluster.clone())
    }

    /// Memory rule that its micro-batches satisfy.
    #[getter]
    fn memory(&self) -> &'static str {
        self.core.memory.name()
    }

    /// Name of the cost profile.
    #[getter]
    fn profile(&self) -> &str {
        &self.core.profile
    }

    /// Predicted time of the slowest replica, in ms.
    #[getter]
    fn iteration_ms(&self) -> f64 {
        self.core.iteration_ms.0
    }

    /// Predicted time from updated parameters to reduced gradients at their owners, in ms; `iteration_ms` without a
    /// link.
    #[getter]
    fn step_ms(&self) -> f64 {
        self.core.step_ms().0
    }

    /// Exposed transfer time, in ms, which adds to the iteration; None if the planner has no link.
    #[getter]
    fn transfer_ms(&self) -> Option<f64> {
        self.core.transfers.map(|transfers| transfers.transfer_ms.0)
    }

    /// Share of the transfer time that overlaps with computation, from 0 to 1; None if the planner has no link.
    #[getter]
    fn overlapped(&self) -> Option<f64> {
        self.core.transfers.map(|transfers| transfers.overlapped())
    }

    /// Bytes that cross between nodes, in both directions; None if the planner has no link.
    #[getter]
    fn moved_bytes(&self) -> Option<u64> {
        self.core.transfers.map(|transfers| transfers.moved_bytes)
    }

    /// Lower bound in ms on iteration and step over the planner's strategies; after a search, over all strategies.
    #[getter]
    fn lower_bound_ms(&self) -> f64 {
        self.core.lower_bound.ms.0
    }

    /// Relative distance to the lower bound: `step_ms / lower_bound_ms - 1`.
    #[getter]
    fn gap(&self) -> f64 {
        self.core.gap()
    }

    /// Replicas in the strategy's order.
    #[getter]
    fn replicas(&self, py: Python<'_>) -> PyResult<Vec<Replica>> {
        self.core.replicas.iter().map(|replica| Replica::new(py, replica)).collect()
    }

    /// Tokens of each sequence: int64 of shape (sequences,).
    #[getter]
    fn lengths(&self, py: Python<'_>) -> Py<PyArray1<i64>> {
        self.lengths.get(py)
    }

    /// Target tokens of each sequence: int64 of shape (sequences,).
    #[getter]
    fn targets(&self, py: Python<'_>) -> Py<PyArray1<i64>> {
        self.targets.get(py)
    }

    /// Sequence ids in running order: int64 of shape (sequences,).
    #[getter]
    fn sequences(&self, py: Python<'_>) -> Py<PyArray1<i64>> {
        self.sequences.get(py)
    }

    /// Index in `sequences` where each micro-batch starts: int64 of shape (micro-batches + 1,).
    #[getter]
    fn micro_batch_offsets(&self, py: Python<'_>) -> Py<PyArray1<i64>> {
        self.micro_batch_offsets.get(py)
    }

    /// Index of each replica's first micro-batch: int64 of shape (replicas + 1,).
    #[getter]
    fn replica_offsets(&self, py: Python<'_>) -> Py<PyArray1<i64>> {
        self.replica_offsets.get(py)
    }

    /// Position of a rank in its replica; None for a rank without work or outside the cluster.
    fn position(&self, py: Python<'_>, rank: Integer) -> PyResult<Option<Position>> {
        let rank: usize = rank.count(py, "rank")?;
        Ok(self.positions.get(rank).copied().flatten().map(Position))
    }

    /// Instructions of a rank in order; empty for a rank without work.
    fn instructions(&self, py: Python<'_>, rank: Integer) -> PyResult<Vec<Py<PyAny>>> {
        let rank: u32 = rank.count(py, "rank")?;
        let position = self.positions.get(rank as usize).copied().flatten();
        let (Some(position), Some(replica)) = (position, self.replica_of(rank)) else { return Ok(Vec::new()) };
        let stage = usize::from(position.stage());
        let stage_group = position.scheme.stage_group_ranks() as usize;
        let peer = |stage: usize| replica.ranks[stage * stage_group + position.in_stage_group() as usize];
        let list = pipeline::instructions(stage, position.scheme.stages(), replica.micro_batches.len());
        list.into_iter().map(|step| instruction(py, step, stage, peer)).collect()
    }

    /// Timeline of each replica whose computations take `durations[replica][stage]` milliseconds.
    fn measured_timeline(&self, py: Python<'_>, durations: Vec<Vec<Vec<f64>>>) -> PyResult<Vec<Vec<Span>>> {
        let stage = |times: Vec<f64>| times.into_iter().map(Millis).collect();
        let replica = |stages: Vec<Vec<f64>>| stages.into_iter().map(stage).collect();
        let durations: Vec<Vec<Vec<Millis>>> = durations.into_iter().map(replica).collect();
        let timelines = detached(py, || plan::measured_timeline(&self.core, &durations))?;
        Ok(timelines.iter().map(spans).collect())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        made_by::<Plan>(py, "from_json", self.to_json())
    }

    fn __repr__(&self) -> String {
        format!(
            "Plan('{}', {} sequences, {:.1} ms)",
            self.core.strategy,
            self.core.batch.len(),
            self.core.iteration_ms.0
        )
    }

    fn __eq__(&self, other: &Plan) -> bool {
        self.core == other.core
    }
}

#[pymethods]
impl Replica {
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        let fields = (
            self.scheme.clone_ref(py),
            self.context,
            self.ranks.clone(),
            self.micro_batches.clone(),
            (self.cap_tokens, self.busy_ms, self.predicted_ms),
            self.reliability,
        );
        made_by::<Replica>(py, "_of", fields)
    }

    #[classmethod]
    fn _of(_class: &Bound<'_, PyType>, py: Python<'_>, fields: ReplicaFields) -> PyResult<Replica> {
        let (scheme, context, ranks, micro_batches, (cap_tokens, busy_ms, predicted_ms), reliability) = fields;
        let context = context.and_then(|name| ContextKind::named(&name));
        let replica = plan::ReplicaPlan {
            scheme: scheme.get().0,
            context,
            ranks,
            micro_batches,
            cap_tokens: Tokens(cap_tokens),
            busy_ms: Millis(busy_ms),
            predicted_ms: Millis(predicted_ms),
            reliability: reliability.map(|(error, factor)| cost::Reliability { error, factor }),
        };
        Replica::new(py, &replica)
    }

    fn __repr__(&self) -> String {
        let sequences: usize = self.micro_batches.iter().map(Vec::len).sum();
        format!("Replica(ranks={:?}, {sequences} sequences in {} micro-batches)", self.ranks, self.micro_batches.len())
    }
}

impl Replica {
    fn new(py: Python<'_>, replica: &plan::ReplicaPlan) -> PyResult<Replica> {
        Ok(Replica {
            scheme: Py::new(py, Scheme(replica.scheme))?,
            context: replica.context.map(ContextKind::name),
            ranks: replica.ranks.clone(),
            stages: replica.ranks.chunks(replica.scheme.stage_group_ranks() as usize).map(<[u32]>::to_vec).collect(),
            micro_batches: replica.micro_batches.clone(),
            cap_tokens: replica.cap_tokens.0,
            busy_ms: replica.busy_ms.0,
            predicted_ms: replica.predicted_ms.0,
            reliability: replica.reliability.map(|reliability| (reliability.error, reliability.factor)),
        })
    }
}
