//! `Simulation`, and what is in it.

use hydraulis_core::Result;
use hydraulis_core::simulate::{self, Conditions, Held, Iteration, Slowdowns};
use hydraulis_core::{cost, plan, spec, timing};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::convert::arrays::Column;
use crate::convert::pickle::{Reduced, made_by};
use crate::pipeline::{Span, spans};
use crate::simulate::network::Network;

/// One step under stated conditions: the instruction lists, run against the cost model, and transfers by a link.
#[pyclass(frozen, get_all, module = "hydraulis")]
#[derive(Debug)]
pub(crate) struct Simulation {
    /// When the last replica ends, transfers left out.
    iteration_ms: f64,
    /// From new parameters at home to all gradients at home; without a link the iteration.
    step_ms: f64,
    /// What of the step is beyond the iteration: transfers that are not hidden; 0 without a link.
    transfer_ms: f64,
    /// What of the transfers' own time computation hides; 0 without a link.
    hidden_ms: f64,
    /// The way of each block's parameters and gradients; none without a link.
    trips: Vec<Trip>,
    /// When each replica ends, in the strategy's order, transfers left out.
    replica_ms: Vec<f64>,
    /// The computations of each replica, in the strategy's order. By a link the first forward of a stage lasts until its
    /// parameters are there.
    timelines: Vec<Vec<Span>>,
    /// The stages of each replica.
    stages: Vec<Vec<Py<StageRun>>>,
    /// Where the time of all ranks of the cluster goes.
    gpu_time: GpuTime,
}

/// Its times, then the others of its fields in their order.
type SimulationFields = ((f64, f64, f64, f64), Vec<Trip>, Vec<f64>, Vec<Vec<Span>>, Vec<Vec<Py<StageRun>>>, GpuTime);

/// What one stage does, and holds.
#[pyclass(frozen, module = "hydraulis")]
#[derive(Debug)]
pub(crate) struct StageRun {
    busy_ms: f64,
    bubble_ms: f64,
    peak_tokens: u64,
    memory: RankMemory,
    held_from_ms: Column<f64>,
    held_tokens: Column,
}

/// Bytes of a rank, by what they hold.
#[expect(clippy::struct_field_names, reason = "Python's names bear their unit")]
#[pyclass(frozen, get_all, from_py_object, module = "hydraulis")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankMemory {
    /// Margin, and transfer buffers.
    reserved_bytes: f64,
    /// Its share of master parameters, their gradients and moments.
    home_bytes: f64,
    /// Parameters and gradients of its stage, and the head's gradient between the loss and its backward.
    held_bytes: f64,
    /// Activations of the micro-batches in flight.
    activation_bytes: f64,
}

impl From<cost::RankMemory> for RankMemory {
    fn from(core: cost::RankMemory) -> RankMemory {
        let cost::RankMemory { reserved, home, held, activations } = core;
        RankMemory { reserved_bytes: reserved, home_bytes: home, held_bytes: held, activation_bytes: activations }
    }
}

#[pymethods]
impl RankMemory {
    /// All of them.
    #[getter]
    fn total_bytes(&self) -> f64 {
        self.reserved_bytes + self.home_bytes + self.held_bytes + self.activation_bytes
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        let RankMemory { reserved_bytes, home_bytes, held_bytes, activation_bytes } = *self;
        made_by::<RankMemory>(py, "_of", [reserved_bytes, home_bytes, held_bytes, activation_bytes])
    }

    #[classmethod]
    fn _of(_class: &Bound<'_, PyType>, fields: [f64; 4]) -> RankMemory {
        let [reserved_bytes, home_bytes, held_bytes, activation_bytes] = fields;
        RankMemory { reserved_bytes, home_bytes, held_bytes, activation_bytes }
    }

    fn __repr__(&self) -> String {
        format!("RankMemory({:.0} bytes)", self.total_bytes())
    }
}

/// Where the time of all ranks goes, in milliseconds of one rank; the parts add up to ranks times step.
#[expect(clippy::struct_field_names, reason = "Python's names bear their unit")]
#[pyclass(frozen, get_all, from_py_object, module = "hydraulis")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct GpuTime {
    /// Computing.
    compute_ms: f64,
    /// Waiting inside a layer for a slower rank of the same stage.
    slower_rank_ms: f64,
    /// Waiting for another stage until the replica ends: the pipeline's bubble, messages included.
    bubble_ms: f64,
    /// Waiting for the slowest replica; of a replica without work, all the time.
    slower_replica_ms: f64,
    /// Of ranks that the strategy leaves out.
    unused_ms: f64,
    /// Of all ranks, what transfers add to the iteration; 0 without a link.
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

/// What of a block is on its way out from home.
const PARAMETERS: &str = "parameters";
/// What of it is on its way back.
const GRADIENTS: &str = "gradients";

/// When the parameters or the gradients of one block are on their way.
#[pyclass(frozen, get_all, from_py_object, module = "hydraulis")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trip {
    /// The block: 0 the embedding, 1 to L the layers, L + 1 the head.
    block: usize,
    /// `parameters`, from home, or `gradients`, to it.
    what: &'static str,
    /// When they leave, in milliseconds after the start of the step.
    start_ms: f64,
    /// When they are there.
    end_ms: f64,
}

#[pymethods]
impl Trip {
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        made_by::<Trip>(py, "_of", (self.block, self.what == PARAMETERS, self.start_ms, self.end_ms))
    }

    #[classmethod]
    fn _of(_class: &Bound<'_, PyType>, fields: (usize, bool, f64, f64)) -> Trip {
        let (block, is_out, start_ms, end_ms) = fields;
        Trip { block, what: if is_out { PARAMETERS } else { GRADIENTS }, start_ms, end_ms }
    }

    fn __repr__(&self) -> String {
        format!("Trip({} of block {}, {:.1} to {:.1} ms)", self.what, self.block, self.start_ms, self.end_ms)
    }
}

/// Simulates; to be called without the GIL.
pub(crate) fn simulate(
    plan: &plan::Plan,
    cost: &cost::CostModel,
    slowdowns: &[(u32, f64)],
    network: Option<&Network>,
    link: Option<timing::Link>,
) -> Result<Iteration> {
    let cluster: spec::Cluster = plan.cluster;
    let slowdowns = Slowdowns::new(cluster, slowdowns)?;
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
            hidden_ms: step.map_or(0.0, |step| step.alone.0 - step.transfer.0),
            trips: step.map(trips).unwrap_or_default(),
            replica_ms: core.replicas.iter().map(|replica| replica.end.0).collect(),
            timelines,
            stages: core.replicas.iter().map(replica).collect::<PyResult<_>>()?,
            gpu_time: core.gpu_time.into(),
        })
    }
}

/// The ways out and back of every block.
fn trips(step: &simulate::StepRun) -> Vec<Trip> {
    let trip = |what, (block, trip): (usize, &simulate::Trip)| Trip {
        block,
        what,
        start_ms: trip.start.0,
        end_ms: trip.end.0,
    };
    let out = step.parameters.iter().enumerate().map(|one| trip(PARAMETERS, one));
    out.chain(step.gradients.iter().enumerate().map(|one| trip(GRADIENTS, one))).collect()
}

#[pymethods]
impl Simulation {
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        let stages = |replica: &Vec<Py<StageRun>>| replica.iter().map(|stage| stage.clone_ref(py)).collect();
        let fields = (
            (self.iteration_ms, self.step_ms, self.transfer_ms, self.hidden_ms),
            self.trips.clone(),
            self.replica_ms.clone(),
            self.timelines.clone(),
            self.stages.iter().map(stages).collect::<Vec<Vec<_>>>(),
            self.gpu_time,
        );
        made_by::<Simulation>(py, "_of", fields)
    }

    #[classmethod]
    fn _of(_class: &Bound<'_, PyType>, fields: SimulationFields) -> Simulation {
        let (times, trips, replica_ms, timelines, stages, gpu_time) = fields;
        let (iteration_ms, step_ms, transfer_ms, hidden_ms) = times;
        Simulation { iteration_ms, step_ms, transfer_ms, hidden_ms, trips, replica_ms, timelines, stages, gpu_time }
    }

    fn __repr__(&self) -> String {
        format!("Simulation({} replicas, {:.1} ms)", self.replica_ms.len(), self.step_ms)
    }
}

/// Its times, its tokens, its memory, and both columns of what it holds.
type StageRunFields<'py> = (f64, f64, u64, RankMemory, (PyReadonlyArray1<'py, f64>, PyReadonlyArray1<'py, i64>));

impl StageRun {
    fn new(py: Python<'_>, stage: &simulate::StageRun) -> StageRun {
        StageRun {
            busy_ms: stage.busy.0,
            bubble_ms: stage.bubble.0,
            peak_tokens: stage.peak.0,
            memory: stage.memory.into(),
            held_from_ms: Column::new(py, stage.held.iter().map(|held: &Held| held.from.0).collect()),
            held_tokens: Column::from_counts(py, stage.held.iter().map(|held| held.tokens.0)),
        }
    }
}

#[pymethods]
impl StageRun {
    /// How long it computes, at the pace of its slowest rank.
    #[getter]
    fn busy_ms(&self) -> f64 {
        self.busy_ms
    }

    /// How long it waits for other stages, until its replica's end.
    #[getter]
    fn bubble_ms(&self) -> f64 {
        self.bubble_ms
    }

    /// Most tokens that it holds at once.
    #[getter]
    fn peak_tokens(&self) -> u64 {
        self.peak_tokens
    }

    /// What a rank's memory holds at that moment, by what the profile says of the stage, or of the fullest one alone.
    #[getter]
    fn memory(&self) -> RankMemory {
        self.memory
    }

    /// The moments at which what it holds changes: float64 of shape (changes,).
    #[getter]
    fn held_from_ms(&self, py: Python<'_>) -> Py<PyArray1<f64>> {
        self.held_from_ms.get(py)
    }

    /// The tokens that it holds from each of them on: int64 of shape (changes,).
    #[getter]
    fn held_tokens(&self, py: Python<'_>) -> Py<PyArray1<i64>> {
        self.held_tokens.get(py)
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        let held = (self.held_from_ms.get(py), self.held_tokens.get(py));
        made_by::<StageRun>(py, "_of", (self.busy_ms, self.bubble_ms, self.peak_tokens, self.memory, held))
    }

    #[classmethod]
    fn _of(_class: &Bound<'_, PyType>, py: Python<'_>, fields: StageRunFields<'_>) -> StageRun {
        let (busy_ms, bubble_ms, peak_tokens, memory, (from_ms, tokens)) = fields;
        let held_from_ms = Column::new(py, from_ms.as_array().to_vec());
        let held_tokens = Column::new(py, tokens.as_array().to_vec());
        StageRun { busy_ms, bubble_ms, peak_tokens, memory, held_from_ms, held_tokens }
    }

    fn __repr__(&self) -> String {
        format!("StageRun(busy {:.1} ms, bubble {:.1} ms, {} tokens)", self.busy_ms, self.bubble_ms, self.peak_tokens)
    }
}
