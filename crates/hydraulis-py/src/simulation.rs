//! `Simulation`, what is in it, and what it is made under.

use hydraulis_core::simulation::{self, Conditions, Held, Iteration, Slowdowns, Wire};
use hydraulis_core::{Result, cost, layout, plan, spec};
use numpy::PyArray1;
use pyo3::prelude::*;

use crate::arrays::Column;
use crate::cost::CostProfile;
use crate::errors::raise;
use crate::link::LinkRates;
use crate::schedule::{Span, spans};

/// What carries activations and their gradients between the stages of a pipeline.
///
/// Each rank sends its share of a micro-batch's tokens to the rank in its place in the neighbouring stage: inside a node
/// over a wire of its own, from node to node over the node's one wire, of which everything that ever leaves the node in
/// the iteration has an even share. Each wire carries one message after another each way.
///
/// Args:
///     token_bytes: of one token's hidden state: hidden size times bytes of an element.
///     inside_gigabytes_per_s: of each rank's wire inside its node, one way, 1e9 bytes a second.
///     between_gigabytes_per_s: of each node's wire, one way.
///     inside_latency_ms: until the first byte arrives, inside a node.
///     between_latency_ms: between nodes.
///
/// Raises:
///     InvalidInputError: a value is out of range (code `network_value`).
#[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
#[pyclass(frozen, module = "hydraulis")]
#[derive(Debug)]
pub(crate) struct Network(simulation::Network);

#[pymethods]
impl Network {
    #[new]
    #[pyo3(signature = (*, token_bytes, inside_gigabytes_per_s, between_gigabytes_per_s, inside_latency_ms=0.0, between_latency_ms=0.0))]
    fn new(
        py: Python<'_>,
        token_bytes: f64,
        inside_gigabytes_per_s: f64,
        between_gigabytes_per_s: f64,
        inside_latency_ms: f64,
        between_latency_ms: f64,
    ) -> PyResult<Network> {
        let inside = Wire { gigabytes_per_s: inside_gigabytes_per_s, latency_ms: inside_latency_ms };
        let between = Wire { gigabytes_per_s: between_gigabytes_per_s, latency_ms: between_latency_ms };
        simulation::Network::new(token_bytes, inside, between).map(Network).map_err(|error| raise(py, &error))
    }

    /// The wires by which hidden states of the profile's model travel at these rates.
    ///
    /// Raises:
    ///     InvalidInputError: the profile does not say of which model it is (code `link_model`).
    #[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
    #[staticmethod]
    fn of_profile(py: Python<'_>, profile: &CostProfile, rates: LinkRates) -> PyResult<Network> {
        simulation::Network::of_profile(&profile.0, rates.into()).map(Network).map_err(|error| raise(py, &error))
    }

    /// The same as the profile has them measured point to point, inside a node and between nodes, each by these rates where it
    /// has not.
    ///
    /// Raises:
    ///     InvalidInputError: as `of_profile`, or what was measured is no rate or latency (`network_value`).
    #[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
    #[staticmethod]
    fn measured(py: Python<'_>, profile: &CostProfile, otherwise: LinkRates) -> PyResult<Network> {
        simulation::Network::measured(&profile.0, otherwise.into()).map(Network).map_err(|error| raise(py, &error))
    }
}

/// One step under stated conditions: the instruction lists, run against the cost model, and transfers by a link.
#[pyclass(frozen, module = "hydraulis")]
#[derive(Debug)]
pub(crate) struct Simulation {
    core: Iteration,
    stages: Vec<Vec<Py<StageRun>>>,
}

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
#[pyclass(frozen, get_all, module = "hydraulis")]
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

    fn __repr__(&self) -> String {
        format!("RankMemory({:.0} bytes)", self.total_bytes())
    }
}

/// Where the time of all ranks goes, in milliseconds of one rank; the parts add up to ranks times step.
#[expect(clippy::struct_field_names, reason = "Python's names bear their unit")]
#[pyclass(frozen, get_all, module = "hydraulis")]
#[derive(Debug)]
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

/// When the parameters or the gradients of one block are on their way.
#[pyclass(frozen, get_all, module = "hydraulis")]
#[derive(Debug)]
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
    link: Option<layout::Link>,
) -> Result<Iteration> {
    let cluster: spec::Cluster = plan.cluster;
    let slowdowns = Slowdowns::new(cluster, slowdowns)?;
    let conditions = Conditions { slowdowns, network: network.map(|network| network.0), link };
    simulation::simulate_iteration(plan, cost, &conditions)
}

impl Simulation {
    pub(crate) fn new(py: Python<'_>, core: Iteration) -> PyResult<Simulation> {
        let stage = |stage: &simulation::StageRun| Py::new(py, StageRun::new(py, stage));
        let replica = |replica: &simulation::ReplicaRun| replica.stages.iter().map(stage).collect();
        let stages = core.replicas.iter().map(replica).collect::<PyResult<_>>()?;
        Ok(Simulation { core, stages })
    }
}

#[pymethods]
impl Simulation {
    /// When the last replica ends, transfers left out.
    #[getter]
    fn iteration_ms(&self) -> f64 {
        self.core.end.0
    }

    /// From new parameters at home to all gradients at home; without a link the iteration.
    #[getter]
    fn step_ms(&self) -> f64 {
        self.core.step_end().0
    }

    /// What of the step is beyond the iteration: transfers that are not hidden; 0 without a link.
    #[getter]
    fn transfer_ms(&self) -> f64 {
        self.core.step.as_ref().map_or(0.0, |step| step.transfer.0)
    }

    /// What of the transfers' own time computation hides; 0 without a link.
    #[getter]
    fn hidden_ms(&self) -> f64 {
        self.core.step.as_ref().map_or(0.0, |step| step.alone.0 - step.transfer.0)
    }

    /// The way of each block's parameters and gradients; none without a link.
    #[getter]
    fn trips(&self) -> Vec<Trip> {
        let trip = |what, (block, trip): (usize, &simulation::Trip)| Trip {
            block,
            what,
            start_ms: trip.start.0,
            end_ms: trip.end.0,
        };
        let of = |step: &simulation::StepRun| {
            let out = step.parameters.iter().enumerate().map(|one| trip("parameters", one));
            out.chain(step.gradients.iter().enumerate().map(|one| trip("gradients", one))).collect()
        };
        self.core.step.as_ref().map(of).unwrap_or_default()
    }

    /// When each replica ends, in the strategy's order, transfers left out.
    #[getter]
    fn replica_ms(&self) -> Vec<f64> {
        self.core.replicas.iter().map(|replica| replica.end.0).collect()
    }

    /// The computations of each replica, in the strategy's order. By a link the first forward of a stage lasts until its
    /// parameters are there.
    #[getter]
    fn timelines(&self) -> Vec<Vec<Span>> {
        match &self.core.step {
            Some(step) => step.timelines.iter().map(spans).collect(),
            None => self.core.replicas.iter().map(|replica| spans(&replica.timeline)).collect(),
        }
    }

    /// The stages of each replica.
    #[getter]
    fn stages(&self, py: Python<'_>) -> Vec<Vec<Py<StageRun>>> {
        self.stages.iter().map(|stages| stages.iter().map(|stage| stage.clone_ref(py)).collect()).collect()
    }

    /// Where the time of all ranks of the cluster goes.
    #[getter]
    fn gpu_time(&self) -> GpuTime {
        let time = self.core.gpu_time;
        GpuTime {
            compute_ms: time.compute.0,
            slower_rank_ms: time.slower_rank.0,
            bubble_ms: time.bubble.0,
            slower_replica_ms: time.slower_replica.0,
            unused_ms: time.unused.0,
            transfers_ms: time.transfers.0,
        }
    }

    fn __repr__(&self) -> String {
        format!("Simulation({} replicas, {:.1} ms)", self.core.replicas.len(), self.core.step_end().0)
    }
}

impl StageRun {
    fn new(py: Python<'_>, stage: &simulation::StageRun) -> StageRun {
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

    fn __repr__(&self) -> String {
        format!("StageRun(busy {:.1} ms, bubble {:.1} ms, {} tokens)", self.busy_ms, self.bubble_ms, self.peak_tokens)
    }
}
