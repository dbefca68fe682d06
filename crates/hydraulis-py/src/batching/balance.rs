//! `balance` and `Balance`.

use hydraulis_core::batch::Batch;
use hydraulis_core::batching::balance::{
    self as balancing, Balancer, Barrier, MicroBatch, SequenceCost, SequenceValues,
};
use hydraulis_core::{Millis, Tokens, codes};
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::batching::balance_options::BalanceOptions;
use crate::convert::arrays::{Column, Whole, floats, integers, offsets};
use crate::convert::errors::invalid;
use crate::convert::gil::interruptible;
use crate::convert::integers::Integer;
use crate::convert::{Reduced, made_by};

/// Micro-batches of data-parallel replicas, their predicted time, and a lower bound on it.
#[pyclass(frozen, module = "hydraulis")]
#[derive(Debug)]
pub(crate) struct Balance {
    core: balancing::Balance,
    sequences: Column,
    micro_batch_offsets: Column,
    replica_offsets: Column,
    micro_batch_ms: Column<f64>,
    loss_weights: Column<f64>,
}

/// Assign the sequences of a batch to the micro-batches of data-parallel replicas.
///
/// A sequence of `s` tokens takes `quadratic_ms_per_token2 s^2 + linear_ms_per_token s`, and its `work_ms` in addition;
/// any other unit of time works too. Each micro-batch has at most `cap_tokens` tokens. Equal inputs give equal results,
/// byte for byte.
///
/// Args:
///     lengths: Tokens of each sequence, any one-dimensional integer array or list; a sequence's id is its index.
///     replicas: Number of replicas.
///     cap_tokens: Token cap of a micro-batch.
///     barrier: Point at which the replicas wait for one another. "step" (DDP, ZeRO-1): the replicas' totals are
///         balanced, and each replica runs as many micro-batches as it needs. "micro_batch" (FSDP, ZeRO-3): all
///         replicas run the same number of micro-batches, and the i-th micro-batches of all replicas are balanced.
///     linear_ms_per_token: Time per token, in ms.
///     quadratic_ms_per_token2: Time per squared token of a sequence, in ms.
///     work_ms: Time of each sequence in addition to that of its tokens, in ms, such as that of a tree or of images.
///     extra_tokens: Tokens of each sequence that count against `options.cap_extra_tokens`, such as a vision encoder's.
///     groups: Group of each sequence; the sequences of one group stay in one micro-batch.
///     targets: Target tokens of each sequence, for `loss_weights`; None if all tokens are targets.
///     options: Demands of the loop, such as an exact number of micro-batches; None for none.
///
/// Raises:
///     InvalidInputError: An argument is out of range: `batch_empty`, `lengths_invalid` or `argument_invalid`.
///     InfeasibleError: A sequence or a group exceeds a cap (`sequence_too_long`), or the sequences are too few or too
///         many for the permitted micro-batches (`batch_unplaceable`).
///
/// The algorithm assigns the longest sequence first (Graham 1969), under a cap; docs/architecture.md names the modules
/// with the remaining rules and the bound.
#[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
#[expect(clippy::too_many_arguments, reason = "Python gives them by name")]
#[pyfunction]
#[pyo3(signature = (
    lengths, *, replicas, cap_tokens, barrier, linear_ms_per_token=0.0, quadratic_ms_per_token2=0.0,
    work_ms=None, extra_tokens=None, groups=None, targets=None, options=None
))]
pub(crate) fn balance(
    py: Python<'_>,
    lengths: &Bound<'_, PyAny>,
    replicas: Integer,
    cap_tokens: Integer,
    barrier: &str,
    linear_ms_per_token: f64,
    quadratic_ms_per_token2: f64,
    work_ms: Option<&Bound<'_, PyAny>>,
    extra_tokens: Option<&Bound<'_, PyAny>>,
    groups: Option<&Bound<'_, PyAny>>,
    targets: Option<&Bound<'_, PyAny>>,
    options: Option<&BalanceOptions>,
) -> PyResult<Balance> {
    let lengths = integers("lengths", Whole::Lengths, lengths)?;
    let (replicas, cap_tokens) = (replicas.read(py, "replicas")?, cap_tokens.read(py, "cap_tokens")?);
    let barrier = match barrier {
        "step" => Barrier::Step,
        "micro_batch" => Barrier::MicroBatch,
        _ => {
            let message = format!("barrier is '{barrier}': give 'step' (DDP, ZeRO-1) or 'micro_batch' (FSDP, ZeRO-3)");
            return Err(invalid(py, &message, &codes::ARGUMENT_INVALID));
        }
    };
    let work_ms = work_ms.map(|values| floats("work_ms", values)).transpose()?;
    let list =
        |name, whole, values: Option<&Bound<'_, PyAny>>| values.map(|values| integers(name, whole, values)).transpose();
    let extra_tokens = list("extra_tokens", Whole::ExtraTokens, extra_tokens)?;
    let groups = list("groups", Whole::Groups, groups)?;
    let targets = list("targets", Whole::Targets, targets)?;
    let options = options.map_or_else(balancing::BalanceOptions::default, |options| options.0.clone());
    let core = interruptible(py, |cancellation| {
        let has_own_work = work_ms.is_some() && (linear_ms_per_token, quadratic_ms_per_token2) == (0.0, 0.0);
        let cost = if has_own_work {
            SequenceCost::NONE
        } else {
            SequenceCost::new(quadratic_ms_per_token2, linear_ms_per_token)?
        };
        let balancer = Balancer::new(replicas, cap_tokens, cost, barrier, &options)?;
        let values = SequenceValues {
            work_ms: work_ms.as_deref(),
            extra_tokens: extra_tokens.as_deref(),
            groups: groups.as_deref(),
        };
        balancer.balance_values(&Batch::new(&lengths, targets.as_deref())?, &values, cancellation)
    })?;
    Ok(Balance::new(py, core))
}

/// The sequences of a micro-batch, their tokens, their extra tokens and its time.
type MicroBatchFields = (Vec<usize>, u64, u64, f64);
/// The micro-batches of each replica, the iteration time, the lower bound on it, and the loss weights.
type BalanceFields = (Vec<Vec<MicroBatchFields>>, f64, f64, Vec<f64>);

impl Balance {
    fn new(py: Python<'_>, core: balancing::Balance) -> Balance {
        Balance {
            sequences: Column::from_counts(py, core.sequences()),
            micro_batch_offsets: Column::from_counts(py, offsets(core.micro_batches().map(|one| one.sequences.len()))),
            replica_offsets: Column::from_counts(py, offsets(core.replicas.iter().map(Vec::len))),
            loss_weights: Column::new(py, core.loss_weights.clone()),
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

    /// Factor of each micro-batch's mean loss: float64 of shape (micro-batches,).
    ///
    /// The mean is taken over the micro-batch's own target tokens. Where gradients are summed over the micro-batches of
    /// a replica and averaged over replicas, as DDP and FSDP do, the weighted losses give the mean over all target
    /// tokens of the step. A micro-batch without target tokens has weight 0 and no mean loss: leave its loss out.
    #[getter]
    fn loss_weights(&self, py: Python<'_>) -> Py<PyArray1<f64>> {
        self.loss_weights.get(py)
    }

    /// Predicted time of the step, in ms: the slowest replica's total, or the sum of the longest micro-batch of each
    /// slot.
    #[getter]
    fn iteration_ms(&self) -> f64 {
        self.core.iteration_ms.0
    }

    /// Lower bound on `iteration_ms` of every balance under the caps and the options, for any permitted number of
    /// micro-batches.
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
        let micro_batch = |one: &MicroBatch| (one.sequences.clone(), one.tokens.0, one.extra_tokens.0, one.ms.0);
        let replica = |replica: &Vec<MicroBatch>| replica.iter().map(micro_batch).collect::<Vec<_>>();
        let replicas: Vec<_> = self.core.replicas.iter().map(replica).collect();
        made_by::<Balance>(
            py,
            "_of",
            (replicas, self.iteration_ms(), self.lower_bound_ms(), self.core.loss_weights.clone()),
        )
    }

    #[classmethod]
    fn _of(_class: &Bound<'_, PyType>, py: Python<'_>, fields: BalanceFields) -> Balance {
        let (replicas, iteration_ms, lower_bound_ms, loss_weights) = fields;
        let micro_batch = |(sequences, tokens, extra_tokens, ms): MicroBatchFields| MicroBatch {
            sequences,
            tokens: Tokens(tokens),
            extra_tokens: Tokens(extra_tokens),
            ms: Millis(ms),
        };
        let replica = |replica: Vec<MicroBatchFields>| replica.into_iter().map(micro_batch).collect();
        let core = balancing::Balance {
            replicas: replicas.into_iter().map(replica).collect(),
            iteration_ms: Millis(iteration_ms),
            lower_bound_ms: Millis(lower_bound_ms),
            loss_weights,
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
