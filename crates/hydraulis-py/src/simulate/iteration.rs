//! `Simulation` and its parts.

use hydraulis_core::Result;
use hydraulis_core::simulate::{self, Conditions, Iteration, SavedTokens, Slowdowns};
use hydraulis_core::{cost, plan, timing};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::convert::arrays::Column;
use crate::convert::{Reduced, made_by};
use crate::pipeline::{Span, spans};
use crate::simulate::network::Network;

/// One simulated step: instruction lists timed by the cost model, and transfers timed by a link.
#[pyclass(frozen, get_all, module = "hydraulis")]
#[derive(Debug)]
pub(crate) struct Simulation {
    /// End of the last replica without transfers, in ms.
    iteration_ms: f64,
    /// Time from updated parameters to reduced gradients at their owners, in ms; without a link, the iteration.
    step_ms: f64,
    /// Exposed transfer time, the difference of step and iteration, in ms; 0 without a link.
    transfer_ms: f64,
    /// Overlapped transfer time, in ms; 0 without a link.
    overlapped_ms: f64,
    /// Transfer spans of each layer group's parameters and of its gradients, which under sharded gradients travel once in
    /// each round; empty without a link.
    transfer_spans: Vec<TransferSpan>,
    /// End of each replica without transfers, in ms, in the strategy's order.
    replica_ms: Vec<f64>,
    /// Computations of each replica, in the strategy's order. With a link, the first forward of a stage starts before
    /// its parameters arrive and lasts until after their arrival.
    timelines: Vec<Vec<Span>>,
    /// Stages of each replica.
    stages: Vec<Vec<Py<StageRun>>>,
    /// Time of all ranks of the cluster by use.
    gpu_time: GpuTime,
}

/// Times first, then the other fields in their order.
type SimulationFields =
    ((f64, f64, f64, f64), Vec<TransferSpan>, Vec<f64>, Vec<Vec<Span>>, Vec<Vec<Py<StageRun>>>, GpuTime);

/// Computing time, waiting time and memory of one stage.
#[pyclass(frozen, module = "hydraulis")]
#[derive(Debug)]
pub(crate) struct StageRun {
    busy_ms: f64,
    bubble_ms: f64,
    peak_tokens: u64,
    memory: RankMemory,
    saved_from_ms: Column<f64>,
    saved_tokens: Column,
}

/// Bytes of a rank by category.
#[expect(clippy::struct_field_names, reason = "Python's names bear their unit")]
#[pyclass(frozen, get_all, from_py_object, module = "hydraulis")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankMemory {
    /// Safety margin and transfer buffers, in bytes.
    reserved_bytes: f64,
    /// Optimizer shard: master parameters, their gradients and moments, in bytes.
    optimizer_bytes: f64,
    /// Parameters and gradients of the stage, and the head's gradient between loss and backward, in bytes.
    resident_bytes: f64,
    /// Activations of the micro-batches in flight, in bytes.
    activation_bytes: f64,
}

impl From<cost::RankMemory> for RankMemory {
    fn from(core: cost::RankMemory) -> RankMemory {
        let cost::RankMemory { reserved, optimizer, resident, activations } = core;
        RankMemory {
            reserved_bytes: reserved,
            optimizer_bytes: optimizer,
            resident_bytes: resident,
            activation_bytes: activations,
        }
    }
}

#[pymethods]
impl RankMemory {
    /// Sum of all categories, in bytes.
    #[getter]
    fn total_bytes(&self) -> f64 {
        self.reserved_bytes + self.optimizer_bytes + self.resident_bytes + self.activation_bytes
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        let RankMemory { reserved_bytes, optimizer_bytes, resident_bytes, activation_bytes } = *self;
        made_by::<RankMemory>(py, "_of", [reserved_bytes, optimizer_bytes, resident_bytes, activation_bytes])
    }

    #[classmethod]
    fn _of(_class: &Bound<'_, PyType>, fields: [f64; 4]) -> RankMemory {
        let [reserved_bytes, optimizer_bytes, resident_bytes, activation_bytes] = fields;
        RankMemory { reserved_bytes, optimizer_bytes, resident_bytes, activation_bytes }
    }

    fn __repr__(&self) -> String {
        format!("RankMemory({:.0} bytes)", self.total_bytes())
    }
}

/// Time of all ranks by use, in rank-milliseconds; the parts add up to ranks times step.
#[expect(clippy::struct_field_names, reason = "Python's names bear their unit")]
#[pyclass(frozen, get_all, from_py_object, module = "hydraulis")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct GpuTime {
    /// Computation.
    compute_ms: f64,
    /// Waiting inside a layer for a slower rank of the same stage.
    slower_rank_ms: f64,
    /// Waiting for another stage until the replica ends: the pipeline's bubble, messages included.
    bubble_ms: f64,
    /// Waiting for the slowest replica; all the time of a replica without work.
    slower_replica_ms: f64,
    /// Time of ranks outside the strategy.
    unused_ms: f64,
    /// Exposed transfer time of all ranks; 0 without a link.
    transfers_ms: f64,
}

impl From<simulate::GpuTime> for GpuTime {
    fn from(core: simulate::GpuTime) -> GpuTime {
        GpuTime {
            compute_ms: core.compute.0,
            slower_rank_ms: core.slower_rank.0,
            bubble_ms: core.bubble.0,
            slower_replica_ms: core.slower_replica.0,
            unused_ms: core.unused.0,
            transfers_ms: core.transfers.0,
        }
    }
}

#[pymethods]
impl GpuTime {
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        let GpuTime { compute_ms, slower_rank_ms, bubble_ms, slower_replica_ms, unused_ms, transfers_ms } = *self;
        let fields = [compute_ms, slower_rank_ms, bubble_ms, slower_replica_ms, unused_ms, transfers_ms];
        made_by::<GpuTime>(py, "_of", fields)
    }

    #[classmethod]
    fn _of(_class: &Bound<'_, PyType>, fields: [f64; 6]) -> GpuTime {
        let [compute_ms, slower_rank_ms, bubble_ms, slower_replica_ms, unused_ms, transfers_ms] = fields;
        GpuTime { compute_ms, slower_rank_ms, bubble_ms, slower_replica_ms, unused_ms, transfers_ms }
    }
}

/// Kind of a transfer span: parameters on their way from their owners.
const PARAMETERS: &str = "parameters";
/// Kind of a transfer span: gradients on their way to their owners.
const GRADIENTS: &str = "gradients";

/// Span of time in which the parameters or gradients of one layer group travel.
#[pyclass(frozen, get_all, from_py_object, module = "hydraulis")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransferSpan {
    /// Layer group: 0 the embedding, 1 to L the layers, L + 1 the head.
    layer_group: usize,
    /// Kind: `parameters`, from their owners, or `gradients`, to their owners.
    kind: &'static str,
    /// Start of the transfer, in milliseconds after the start of the step.
    start_ms: f64,
    /// End of the transfer, in milliseconds after the start of the step.
    end_ms: f64,
}

#[pymethods]
impl TransferSpan {
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        made_by::<TransferSpan>(py, "_of", (self.layer_group, self.kind == PARAMETERS, self.start_ms, self.end_ms))
    }

    #[classmethod]
    fn _of(_class: &Bound<'_, PyType>, fields: (usize, bool, f64, f64)) -> TransferSpan {
        let (layer_group, is_out, start_ms, end_ms) = fields;
        TransferSpan { layer_group, kind: if is_out { PARAMETERS } else { GRADIENTS }, start_ms, end_ms }
    }

    fn __repr__(&self) -> String {
        format!(
            "TransferSpan({} of layer_group {}, {:.1} to {:.1} ms)",
            self.kind, self.layer_group, self.start_ms, self.end_ms
        )
    }
}

/// Simulates an iteration; the caller has released the GIL.
pub(crate) fn simulate(
    plan: &plan::Plan,
    cost: &cost::CostModel,
    slowdowns: &[(u32, f64)],
    network: Option<&Network>,
    link: Option<timing::Link>,
) -> Result<Iteration> {
    let slowdowns = Slowdowns::new(&plan.cluster, slowdowns)?;
    let conditions = Conditions { slowdowns, network: network.map(Network::core), link };
    simulate::simulate_iteration(plan, cost, &conditions)
}

impl Simulation {
    pub(crate) fn new(py: Python<'_>, core: &Iteration) -> PyResult<Simulation> {
        let step = core.step.as_ref();
        let timelines: Vec<Vec<Span>> = match step {
            Some(step) => step.timelines.iter().map(spans).collect(),
            None => core.replicas.iter().map(|replica| spans(&replica.timeline)).collect(),
        };
        let stage = |stage: &simulate::StageRun| Py::new(py, StageRun::new(py, stage));
        let replica = |replica: &simulate::ReplicaRun| replica.stages.iter().map(stage).collect();
        Ok(Simulation {
            iteration_ms: core.end.0,
            step_ms: core.step_end().0,
            transfer_ms: step.map_or(0.0, |step| step.transfer.0),
            overlapped_ms: step.map_or(0.0, |step| step.alone.0 - step.transfer.0),
            transfer_spans: step.map(transfer_spans).unwrap_or_default(),
            replica_ms: core.replicas.iter().map(|replica| replica.end.0).collect(),
            timelines,
            stages: core.replicas.iter().map(replica).collect::<PyResult<_>>()?,
            gpu_time: core.gpu_time.into(),
        })
    }
}

/// Transfer spans of the parameters and gradients of every layer group.
fn transfer_spans(step: &simulate::StepRun) -> Vec<TransferSpan> {
    let transfer_span = |kind, (layer_group, transfer_span): (usize, &simulate::TransferSpan)| TransferSpan {
        layer_group,
        kind,
        start_ms: transfer_span.start.0,
        end_ms: transfer_span.end.0,
    };
    let once = step.parameters.iter().enumerate().filter(|_| step.gathers.is_empty());
    let out = once.chain(step.gathers.iter().map(|(bucket, span)| (*bucket, span)));
    let out = out.map(|one| transfer_span(PARAMETERS, one));
    let back = step.earlier_gradients.iter().chain([&step.gradients]);
    out.chain(back.flat_map(|round| round.iter().enumerate().map(|one| transfer_span(GRADIENTS, one)))).collect()
}

#[pymethods]
impl Simulation {
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        let stages = |replica: &Vec<Py<StageRun>>| replica.iter().map(|stage| stage.clone_ref(py)).collect();
        let fields = (
            (self.iteration_ms, self.step_ms, self.transfer_ms, self.overlapped_ms),
            self.transfer_spans.clone(),
            self.replica_ms.clone(),
            self.timelines.clone(),
            self.stages.iter().map(stages).collect::<Vec<Vec<_>>>(),
            self.gpu_time,
        );
        made_by::<Simulation>(py, "_of", fields)
    }

    #[classmethod]
    fn _of(_class: &Bound<'_, PyType>, fields: SimulationFields) -> Simulation {
        let (times, transfer_spans, replica_ms, timelines, stages, gpu_time) = fields;
        let (iteration_ms, step_ms, transfer_ms, overlapped_ms) = times;
        Simulation {
            iteration_ms,
            step_ms,
            transfer_ms,
            overlapped_ms,
            transfer_spans,
            replica_ms,
            timelines,
            stages,
            gpu_time,
        }
    }

    fn __repr__(&self) -> String {
        format!("Simulation({} replicas, {:.1} ms)", self.replica_ms.len(), self.step_ms)
    }
}

/// Times, peak tokens, memory, and both columns of the resident tokens.
type StageRunFields<'py> = (f64, f64, u64, RankMemory, (PyReadonlyArray1<'py, f64>, PyReadonlyArray1<'py, i64>));

impl StageRun {
    fn new(py: Python<'_>, stage: &simulate::StageRun) -> StageRun {
        StageRun {
            busy_ms: stage.busy.0,
            bubble_ms: stage.bubble.0,
            peak_tokens: stage.peak.0,
            memory: stage.memory.into(),
            saved_from_ms: Column::new(py, stage.saved.iter().map(|saved: &SavedTokens| saved.from.0).collect()),
            saved_tokens: Column::from_counts(py, stage.saved.iter().map(|saved| saved.tokens.0)),
        }
    }
}

#[pymethods]
impl StageRun {
    /// Computing time at the speed of its slowest rank, in ms.
    #[getter]
    fn busy_ms(&self) -> f64 {
        self.busy_ms
    }

    /// Waiting time for other stages until its replica's end, in ms.
    #[getter]
    fn bubble_ms(&self) -> f64 {
        self.bubble_ms
    }

    /// Most tokens in flight at once.
    #[getter]
    fn peak_tokens(&self) -> u64 {
        self.peak_tokens
    }

    /// Memory of a rank at that peak, from the profile's numbers for the stage, or for the fullest stage.
    #[getter]
    fn memory(&self) -> RankMemory {
        self.memory
    }

    /// Times at which the tokens in flight change, in ms: float64 of shape (changes,).
    #[getter]
    fn saved_from_ms(&self, py: Python<'_>) -> Py<PyArray1<f64>> {
        self.saved_from_ms.get(py)
    }

    /// Tokens in flight from each of these times on: int64 of shape (changes,).
    #[getter]
    fn saved_tokens(&self, py: Python<'_>) -> Py<PyArray1<i64>> {
        self.saved_tokens.get(py)
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        let saved = (self.saved_from_ms.get(py), self.saved_tokens.get(py));
        made_by::<StageRun>(py, "_of", (self.busy_ms, self.bubble_ms, self.peak_tokens, self.memory, saved))
    }

    #[classmethod]
    fn _of(_class: &Bound<'_, PyType>, py: Python<'_>, fields: StageRunFields<'_>) -> StageRun {
        let (busy_ms, bubble_ms, peak_tokens, memory, (from_ms, tokens)) = fields;
        let saved_from_ms = Column::new(py, from_ms.as_array().to_vec());
        let saved_tokens = Column::new(py, tokens.as_array().to_vec());
        StageRun { busy_ms, bubble_ms, peak_tokens, memory, saved_from_ms, saved_tokens }
    }

    fn __repr__(&self) -> String {
        format!("StageRun(busy {:.1} ms, bubble {:.1} ms, {} tokens)", self.busy_ms, self.bubble_ms, self.peak_tokens)
    }
}
