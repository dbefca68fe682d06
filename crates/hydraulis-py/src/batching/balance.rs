//! `balance` and `Balance`.

use hydraulis_core::batch::Batch;
use hydraulis_core::batching::balance::{self as balancing, Balancer, Barrier, MicroBatch, SequenceCost};
use hydraulis_core::{Millis, Tokens, codes};
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::convert::arrays::{Column, Whole, integers, offsets};
use crate::convert::errors::invalid;
use crate::convert::gil::detached;
use crate::convert::pickle::{Reduced, made_by};

/// Micro-batches of equal replicas, their predicted time, and a bound on it.
#[pyclass(frozen, module = "hydraulis")]
#[derive(Debug)]
pub(crate) struct Balance {
    core: balancing::Balance,
    sequences: Column,
    micro_batch_offsets: Column,
    replica_offsets: Column,
    micro_batch_ms: Column<f64>,
}

/// Share a batch out over equal data-parallel replicas.
///
/// Every replica takes `quadratic_ms_per_token2 s^2 + linear_ms_per_token s` for a sequence of `s` tokens; any other
/// unit of time does as well. No micro-batch holds more than `cap_tokens`. The same input gives the same bytes.
///
/// Args:
///     lengths: tokens of each sequence, any one-dimensional integer array or list; a sequence's id is its place.
///     replicas: how many there are.
///     cap_tokens: most tokens of one micro-batch.
///     linear_ms_per_token: time of a token.
///     quadratic_ms_per_token2: time of a token with each token of its sequence.
///     barrier: where the replicas wait for one another. "step" (DDP, ZeRO-1): their totals are made equal, and
///         each runs the micro-batches it needs, none where there are more replicas than sequences.
///         "micro_batch" (FSDP, ZeRO-3): all run the same number, and the i-th of all are made equal; some may be
///         empty, and still take part in the collectives.
///
/// Raises:
///     InvalidInputError: `batch_empty`, `length_not_integer`, `length_out_of_range`, `replica_count`,
///         `token_limit`, `sequence_cost` or `barrier_unknown`.
///     InfeasibleError: a sequence exceeds the cap (`sequence_too_long`).
///
/// The rules: longest first (Graham 1969), under a cap; docs/architecture.md has the rest, and the bound.
#[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
#[pyfunction]
#[pyo3(signature = (lengths, *, replicas, cap_tokens, linear_ms_per_token, quadratic_ms_per_token2, barrier))]
pub(crate) fn balance(
    py: Python<'_>,
    lengths: &Bound<'_, PyAny>,
    replicas: i64,
    cap_tokens: i64,
    linear_ms_per_token: f64,
    quadratic_ms_per_token2: f64,
    barrier: &str,
) -> PyResult<Balance> {
    let lengths = integers("lengths", Whole::Lengths, lengths)?;
    let barrier = match barrier {
        "step" => Barrier::Step,
        "micro_batch" => Barrier::MicroBatch,
        _ => {
            let message = format!("barrier is '{barrier}': give 'step' (DDP, ZeRO-1) or 'micro_batch' (FSDP, ZeRO-3)");
            return Err(invalid(py, &message, &codes::ARGUMENT_INVALID));
        }
    };
    let core = detached(py, || {
        let cost = SequenceCost::new(quadratic_ms_per_token2, linear_ms_per_token)?;
        let balancer = Balancer::new(replicas, cap_tokens, cost, barrier)?;
        balancer.balance(&Batch::new(&lengths, None)?)
    })?;
    Ok(Balance::new(py, core))
}

/// The sequences of a micro-batch, their tokens and its time.
type MicroBatchFields = (Vec<usize>, u64, f64);
/// The micro-batches of each replica, the time, and the bound on it.
type BalanceFields = (Vec<Vec<MicroBatchFields>>, f64, f64);

impl Balance {
    fn new(py: Python<'_>, core: balancing::Balance) -> Balance {
        Balance {
            sequences: Column::from_counts(py, core.sequences()),
            micro_batch_offsets: Column::from_counts(py, offsets(core.micro_batches().map(|one| one.sequences.len()))),
            replica_offsets: Column::from_counts(py, offsets(core.replicas.iter().map(Vec::len))),
            micro_batch_ms: Column::new(py, core.micro_batches().map(|one| one.ms.0).collect()),
            core,
        }
    }
}

#[pymethods]
impl Balance {
    /// The ids of each replica's micro-batches, longest sequences first.
    #[getter]
    fn micro_batches(&self) -> Vec<Vec<Vec<usize>>> {
        let ids = |replica: &Vec<MicroBatch>| replica.iter().map(|one| one.sequences.clone()).collect();
        self.core.replicas.iter().map(ids).collect()
    }

    /// Sequence ids, replica by replica and micro-batch by micro-batch: int64 of shape (sequences,).
    #[getter]
    fn sequences(&self, py: Python<'_>) -> Py<PyArray1<i64>> {
        self.sequences.get(py)
    }

    /// Where each micro-batch starts in `sequences`: int64 of shape (micro-batches + 1,).
    #[getter]
    fn micro_batch_offsets(&self, py: Python<'_>) -> Py<PyArray1<i64>> {
        self.micro_batch_offsets.get(py)
    }

    /// Where each replica starts among the micro-batches: int64 of shape (replicas + 1,).
    #[getter]
    fn replica_offsets(&self, py: Python<'_>) -> Py<PyArray1<i64>> {
        self.replica_offsets.get(py)
    }

    /// Predicted time of each micro-batch: float64 of shape (micro-batches,).
    #[getter]
    fn micro_batch_ms(&self, py: Python<'_>) -> Py<PyArray1<f64>> {
        self.micro_batch_ms.get(py)
    }

    /// Predicted time of the step: the slowest replica's total, or the sum of the longest micro-batch of each slot.
    #[getter]
    fn iteration_ms(&self) -> f64 {
        self.core.iteration_ms.0
    }

    /// No balance under the cap is shorter, whatever its number of micro-batches.
    #[getter]
    fn lower_bound_ms(&self) -> f64 {
        self.core.lower_bound_ms.0
    }

    /// `iteration_ms / lower_bound_ms - 1`.
    #[getter]
    fn gap(&self) -> f64 {
        self.core.gap()
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        let micro_batch = |one: &MicroBatch| (one.sequences.clone(), one.tokens.0, one.ms.0);
        let replica = |replica: &Vec<MicroBatch>| replica.iter().map(micro_batch).collect::<Vec<_>>();
        let replicas: Vec<_> = self.core.replicas.iter().map(replica).collect();
        made_by::<Balance>(py, "_of", (replicas, self.iteration_ms(), self.lower_bound_ms()))
    }

    #[classmethod]
    fn _of(_class: &Bound<'_, PyType>, py: Python<'_>, fields: BalanceFields) -> Balance {
        let (replicas, iteration_ms, lower_bound_ms) = fields;
        let micro_batch = |(sequences, tokens, ms): MicroBatchFields| MicroBatch {
            sequences,
            tokens: Tokens(tokens),
            ms: Millis(ms),
        };
        let replica = |replica: Vec<MicroBatchFields>| replica.into_iter().map(micro_batch).collect();
        let core = balancing::Balance {
            replicas: replicas.into_iter().map(replica).collect(),
            iteration_ms: Millis(iteration_ms),
            lower_bound_ms: Millis(lower_bound_ms),
        };
        Balance::new(py, core)
    }

    fn __repr__(&self) -> String {
        let count = self.core.micro_batches().count();
        format!("Balance({} replicas, {count} micro-batches, gap {:.4})", self.core.replicas.len(), self.core.gap())
    }

    fn __eq__(&self, other: &Balance) -> bool {
        self.core == other.core
    }
}
