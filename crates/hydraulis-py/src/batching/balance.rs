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

/// Micro-batches of equal replicas, their predicted time, and a lower bound on it.
#[pyclass(frozen, module = "hydraulis")]
#[derive(Debug)]
pub(crate) struct Balance {
    core: balancing::Balance,
    sequences: Column,
    micro_batch_offsets: Column,
    replica_offsets: Column,
    micro_batch_ms: Column<f64>,
}

/// Assign the sequences of a batch to the micro-batches of equal data-parallel replicas.
///
/// A sequence of `s` tokens takes `quadratic_ms_per_token2 s^2 + linear_ms_per_token s`; any other unit of time works
/// too. Each micro-batch has at most `cap_tokens` tokens. Equal inputs give equal results, byte for byte.
///
/// Args:
///     lengths: Tokens of each sequence, any one-dimensional integer array or list; a sequence's id is its index.
///     replicas: Number of replicas.
///     cap_tokens: Token cap of a micro-batch.
///     linear_ms_per_token: Time per token, in ms.
///     quadratic_ms_per_token2: Time per squared token of a sequence, in ms.
///     barrier: Point at which the replicas wait for one another. "step" (DDP, ZeRO-1): the replicas' totals are
///         balanced, and each replica runs as many micro-batches as it needs, none if there are more replicas than
///         sequences. "micro_batch" (FSDP, ZeRO-3): all replicas run the same number of micro-batches, and the i-th
///         micro-batches of all replicas are balanced; some may be empty and still take part in the collectives.
///
/// Raises:
///     InvalidInputError: An argument is out of range: `batch_empty`, `length_not_integer`, `length_out_of_range`,
///         `replica_count`, `token_limit`, `sequence_cost` or `barrier_unknown`.
///     InfeasibleError: A sequence exceeds the cap (`sequence_too_long`).
///
/// The algorithm assigns the longest sequence first (Graham 1969), under a cap; docs/architecture.md describes the
/// remaining rules and the bound.
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

/// The sequences of a micro-batch, their tokens and their time.
type MicroBatchFields = (Vec<usize>, u64, f64);
/// The micro-batches of each replica, the iteration time, and the lower bound on it.
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
    /// Sequence ids of each replica's micro-batches, longest sequences first.
    #[getter]
    fn micro_batches(&self) -> Vec<Vec<Vec<usize>>> {
        let ids = |replica: &Vec<MicroBatch>| replica.iter().map(|one| one.sequences.clone()).collect();
        self.core.replicas.iter().map(ids).collect()
    }

    /// Sequence ids by replica and micro-batch: int64 of shape (sequences,).
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

    /// Predicted time of each micro-batch, in ms: float64 of shape (micro-batches,).
    #[getter]
    fn micro_batch_ms(&self, py: Python<'_>) -> Py<PyArray1<f64>> {
        self.micro_batch_ms.get(py)
    }

    /// Predicted time of the step, in ms: the slowest replica's total, or the sum of the longest micro-batch of each
    /// slot.
    #[getter]
    fn iteration_ms(&self) -> f64 {
        self.core.iteration_ms.0
    }

    /// Lower bound on `iteration_ms` of every balance under the cap, for any number of micro-batches.
    #[getter]
    fn lower_bound_ms(&self) -> f64 {
        self.core.lower_bound_ms.0
    }

    /// Relative distance to the lower bound: `iteration_ms / lower_bound_ms - 1`.
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
