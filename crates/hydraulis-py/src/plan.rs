//! `Plan` and its replicas.

use hydraulis_core::spec::ContextKind;
use hydraulis_core::{Millis, Tokens};
use hydraulis_core::{cost, explain, layout, pipeline, plan};
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::convert::arrays::{Column, offsets};
use crate::convert::gil::detached;
use crate::convert::pickle::{Reduced, made_by};
use crate::layout::table::Position;
use crate::pipeline::{Span, instruction, spans};
use crate::spec::{Cluster, Scheme};

/// Strategy, placement, dispatch, packing, prediction and bound of one iteration: a pure value.
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

/// What one replica does in an iteration.
#[pyclass(frozen, get_all, module = "hydraulis")]
#[derive(Debug)]
pub(crate) struct Replica {
    /// How it is cut.
    scheme: Py<Scheme>,
    /// The kind of its context parallelism, `ulysses` or `ring`; None where cp is 1.
    context: Option<&'static str>,
    /// Its ranks, stage by stage; within a stage context rank by context rank, each in tensor order.
    ranks: Vec<u32>,
    /// The same ranks, one list for each stage.
    stages: Vec<Vec<u32>>,
    /// The ids of each micro-batch's sequences, in running order; no micro-batches for a replica that stays idle. With
    /// exact memory one without sequences may stand between two that memory cannot hold together.
    micro_batches: Vec<Vec<usize>>,
    /// Most tokens of one micro-batch; with exact memory, of each on average over as many as there are stages.
    cap_tokens: u64,
    /// How long its stages compute, on average.
    busy_ms: f64,
    /// When its last backward ends.
    predicted_ms: f64,
    /// The relative error to expect of its times, and how many times further than the measurements it reaches; None where the
    /// profile does not say.
    trust: Option<(f64, f64)>,
}

/// Its scheme, context, ranks, micro-batches, cap, times and trust.
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

    pub(crate) fn core_positions(&self) -> &[Option<layout::Position>] {
        &self.positions
    }

    /// The replica that a rank with work belongs to.
    fn replica_of(&self, rank: u32) -> Option<&plan::ReplicaPlan> {
        self.core.replicas.iter().find(|replica| replica.ranks.contains(&rank))
    }
}

/// A micro-batch beyond what its profile has measured; its sentence is `str()` of it.
#[pyclass(frozen, from_py_object, module = "hydraulis")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guess(pub(crate) plan::Guess);

#[pymethods]
impl Guess {
    /// The scheme that it runs under, as written.
    #[getter]
    fn scheme(&self) -> String {
        self.0.scheme.to_string()
    }

    /// How many times further than the measured ones it reaches; above 1.
    #[getter]
    fn beyond(&self) -> f64 {
        self.0.beyond
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        made_by::<Guess>(py, "_of", (Scheme(self.0.scheme), self.0.beyond))
    }

    #[classmethod]
    fn _of(_class: &Bound<'_, PyType>, fields: (Py<Scheme>, f64)) -> Guess {
        let (scheme, beyond) = fields;
        Guess(plan::Guess { scheme: scheme.get().0, beyond })
    }

    fn __repr__(&self) -> String {
        format!("Guess('{}', {:.2} times as far as measured)", self.0.scheme, self.0.beyond)
    }
}

#[pymethods]
impl Plan {
    /// Reads the JSON form.
    #[classmethod]
    fn from_json(_class: &Bound<'_, PyType>, py: Python<'_>, text: &str) -> PyResult<Plan> {
        let plan = detached(py, || plan::Plan::from_json(text))?;
        Ok(Plan::new(py, plan))
    }

    /// The JSON form, on one line.
    fn to_json(&self) -> String {
        self.core.to_json()
    }

    /// A readable account: which strategy and why, what each replica does, what bounds the time.
    fn explain(&self) -> String {
        explain::explain(&self.core)
    }

    /// The micro-batch that reaches furthest beyond what the profile has measured; None if none does, or where it does not say.
    #[getter]
    fn guess(&self) -> Option<Guess> {
        self.core.guess().map(Guess)
    }

    /// The strategy, as written.
    #[getter]
    fn strategy(&self) -> String {
        self.core.strategy.to_string()
    }

    /// The cluster planned for.
    #[getter]
    fn cluster(&self) -> Cluster {
        Cluster(self.core.cluster)
    }

    /// The rule by which its micro-batches fit into memory, `cap` or `exact`.
    #[getter]
    fn memory(&self) -> &'static str {
        self.core.memory.name()
    }

    /// Name of the cost profile.
    #[getter]
    fn profile(&self) -> &str {
        &self.core.profile
    }

    /// The slowest replica's predicted time.
    #[getter]
    fn iteration_ms(&self) -> f64 {
        self.core.iteration_ms.0
    }

    /// From new parameters at home to all gradients at home, by the planner's link; `iteration_ms` where it has none.
    #[getter]
    fn step_ms(&self) -> f64 {
        self.core.step_ms().0
    }

    /// What transfers add to the iteration; None where the planner has no link.
    #[getter]
    fn transfer_ms(&self) -> Option<f64> {
        self.core.transfers.map(|transfers| transfers.transfer_ms.0)
    }

    /// The share of the transfers' own time that computation hides; None where the planner has no link.
    #[getter]
    fn hidden(&self) -> Option<f64> {
        self.core.transfers.map(|transfers| transfers.hidden())
    }

    /// Bytes that cross between nodes, both ways; None where the planner has no link.
    #[getter]
    fn moved_bytes(&self) -> Option<u64> {
        self.core.transfers.map(|transfers| transfers.moved_bytes)
    }

    /// No iteration over the strategies of the planner's list is shorter, and no step; after a search, over any strategy.
    #[getter]
    fn lower_bound_ms(&self) -> f64 {
        self.core.lower_bound.ms.0
    }

    /// How far the step may be from the shortest: `step_ms / lower_bound_ms - 1`.
    #[getter]
    fn gap(&self) -> f64 {
        self.core.gap()
    }

    /// The replicas, in the strategy's order.
    #[getter]
    fn replicas(&self, py: Python<'_>) -> PyResult<Vec<Replica>> {
        self.core.replicas.iter().map(|replica| Replica::new(py, replica)).collect()
    }

    /// Length of each sequence: int64 of shape (sequences,).
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

    /// Where a rank stands, or None for a rank without work or outside the cluster.
    fn position(&self, rank: u32) -> Option<Position> {
        self.positions.get(rank as usize).copied().flatten().map(Position)
    }

    /// What a rank does, step by step; nothing for a rank without work.
    fn instructions(&self, py: Python<'_>, rank: u32) -> PyResult<Vec<Py<PyAny>>> {
        let position = self.positions.get(rank as usize).copied().flatten();
        let (Some(position), Some(replica)) = (position, self.replica_of(rank)) else { return Ok(Vec::new()) };
        let stage = usize::from(position.stage());
        let block = position.scheme.block() as usize;
        let peer = |stage: usize| replica.ranks[stage * block + position.in_block() as usize];
        let list = pipeline::instructions(stage, position.scheme.stages(), replica.micro_batches.len());
        list.into_iter().map(|step| instruction(py, step, stage, peer)).collect()
    }

    /// The timeline of each replica when its computations take `durations[replica][stage]` milliseconds.
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
            self.trust,
        );
        made_by::<Replica>(py, "_of", fields)
    }

    #[classmethod]
    fn _of(_class: &Bound<'_, PyType>, py: Python<'_>, fields: ReplicaFields) -> PyResult<Replica> {
        let (scheme, context, ranks, micro_batches, (cap_tokens, busy_ms, predicted_ms), trust) = fields;
        let context = context.and_then(|name| ContextKind::named(&name));
        let replica = plan::ReplicaPlan {
            scheme: scheme.get().0,
            context,
            ranks,
            micro_batches,
            cap_tokens: Tokens(cap_tokens),
            busy_ms: Millis(busy_ms),
            predicted_ms: Millis(predicted_ms),
            trust: trust.map(|(error, beyond)| cost::Trust { error, beyond }),
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
            stages: replica.ranks.chunks(replica.scheme.block() as usize).map(<[u32]>::to_vec).collect(),
            micro_batches: replica.micro_batches.clone(),
            cap_tokens: replica.cap_tokens.0,
            busy_ms: replica.busy_ms.0,
            predicted_ms: replica.predicted_ms.0,
            trust: replica.trust.map(|trust| (trust.error, trust.beyond)),
        })
    }
}
