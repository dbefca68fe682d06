//! `LookaheadPlan`, and the arguments of a lookahead over several batches.

use hydraulis_core::batch::Batch;
use hydraulis_core::lookahead::{self, Lookahead, Member, Progress};
use hydraulis_core::search::Planner;
use hydraulis_core::spec::Strategy;
use hydraulis_core::{Millis, Result, codes};
use numpy::PyArray2;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::convert::arrays::{Whole, batches, lists, pairs};
use crate::convert::errors::invalid;
use crate::convert::gil::{cancellable, detached};
use crate::convert::integers::Integer;
use crate::convert::{Reduced, made_by};
use crate::plan::Plan;
use crate::spec::GivenStrategy;

/// The plans of several iterations, planned together.
#[pyclass(frozen, module = "hydraulis")]
#[derive(Debug)]
pub(crate) struct LookaheadPlan {
    core: lookahead::LookaheadPlan,
    plans: Vec<Py<Plan>>,
    members: Vec<Py<PyArray2<i64>>>,
}

/// Plan, members and strategy change time (ms) of one iteration.
type StepFields = (Py<Plan>, Vec<(usize, usize)>, f64);

#[pymethods]
impl LookaheadPlan {
    /// Plan of each iteration, for its batch after the moves.
    #[getter]
    fn plans(&self, py: Python<'_>) -> Vec<Py<Plan>> {
        self.plans.iter().map(|plan| plan.clone_ref(py)).collect()
    }

    /// Origins of each plan's sequences: per iteration int64 of shape (sequences, 2), the index of the original batch
    /// and the sequence's id in it.
    #[getter]
    fn members(&self, py: Python<'_>) -> Vec<Py<PyArray2<i64>>> {
        self.members.iter().map(|members| members.clone_ref(py)).collect()
    }

    /// Number of sequences trained in another iteration than their own batch's.
    #[getter]
    fn moved(&self) -> usize {
        self.core.moved()
    }

    /// Time of all iterations, in ms.
    #[getter]
    fn iteration_ms(&self) -> f64 {
        self.core.iteration_ms().0
    }

    /// Time of all strategy changes, in ms.
    #[getter]
    fn switch_ms(&self) -> f64 {
        self.core.switch_ms().0
    }

    /// Exposed transfer time of all iterations, in ms; 0 if the planner has no link.
    #[getter]
    fn transfer_ms(&self) -> f64 {
        self.core.transfer_ms().0
    }

    /// Iterations, strategy changes and transfers, in ms: the objective.
    #[getter]
    fn step_ms(&self) -> f64 {
        self.core.step_ms().0
    }

    /// Sum of the plans' lower bounds, in ms: no plans of the batches after these moves are shorter together. Other
    /// moves of sequences might be.
    #[getter]
    fn lower_bound_ms(&self) -> f64 {
        self.core.lower_bound_ms().0
    }

    fn __len__(&self) -> usize {
        self.plans.len()
    }

    fn __eq__(&self, other: &LookaheadPlan) -> bool {
        self.core == other.core
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        let step = |(step, plan): (&lookahead::Step, &Py<Plan>)| {
            let members: Vec<_> = step.members.iter().map(|one| (one.batch, one.sequence)).collect();
            (plan.clone_ref(py), members, step.switch_ms.0)
        };
        made_by::<LookaheadPlan>(py, "_of", self.core.steps.iter().zip(&self.plans).map(step).collect::<Vec<_>>())
    }

    #[classmethod]
    fn _of(_class: &Bound<'_, PyType>, py: Python<'_>, steps: Vec<StepFields>) -> PyResult<LookaheadPlan> {
        let step = |(plan, members, switch_ms): StepFields| lookahead::Step {
            plan: plan.get().inner().clone(),
            members: members.into_iter().map(|(batch, sequence)| Member { batch, sequence }).collect(),
            switch_ms: Millis(switch_ms),
        };
        LookaheadPlan::new(py, lookahead::LookaheadPlan { steps: steps.into_iter().map(step).collect() })
    }

    fn __repr__(&self) -> String {
        format!(
            "LookaheadPlan({} batches, {:.1} ms, {} sequences moved)",
            self.plans.len(),
            self.step_ms(),
            self.moved()
        )
    }
}

impl LookaheadPlan {
    fn new(py: Python<'_>, core: lookahead::LookaheadPlan) -> PyResult<LookaheadPlan> {
        let plans = core.steps.iter().map(|step| Py::new(py, Plan::new(py, step.plan.clone())));
        let members = core.steps.iter().map(|step| pairs(py, step.members.iter().map(|one| [one.batch, one.sequence])));
        Ok(LookaheadPlan { plans: plans.collect::<PyResult<_>>()?, members: members.collect::<PyResult<_>>()?, core })
    }
}

/// Batches and costs of a lookahead, read from Python.
pub(crate) struct Request {
    lengths: Vec<Vec<i64>>,
    targets: Option<Vec<Vec<i64>>>,
    max_delay: usize,
    switch_ms: f64,
    previous: Option<GivenStrategy>,
}

impl Request {
    /// Reads the arguments that `plan_lookahead` and `check_lookahead` share.
    pub(crate) fn take(
        given: &Bound<'_, PyAny>,
        targets: Option<&Bound<'_, PyAny>>,
        max_delay: Integer,
        (switch_ms, previous): (f64, Option<GivenStrategy>),
    ) -> PyResult<Request> {
        let py = given.py();
        let lengths = batches(given)?;
        let targets =
            targets.map(|targets| lists("targets", "targets of batch", Whole::Targets, targets)).transpose()?;
        if let Some(targets) = targets.as_ref().filter(|targets| targets.len() != lengths.len()) {
            let message = format!(
                "target counts were given for {} batches, lengths for {}: give both for each batch",
                targets.len(),
                lengths.len()
            );
            return Err(invalid(py, &message, &codes::LENGTHS_INVALID));
        }
        let max_delay = max_delay.count(py, "max_delay")?;
        Ok(Request { lengths, targets, max_delay, switch_ms, previous })
    }

    /// Plans the batches together.
    pub(crate) fn plan(
        &self,
        py: Python<'_>,
        planner: &Planner,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<LookaheadPlan> {
        let plan = cancellable(py, progress, |cancellation, report| {
            let mut hear = |progress| match progress {
                Progress::Planned { batches, of } => report("plan", batches, of),
                Progress::Exchanged { exchanges, of } => report("exchange", exchanges, of),
            };
            self.with(|lookahead| lookahead::plan_lookahead(planner, lookahead, cancellation, &mut hear))
        })?;
        LookaheadPlan::new(py, plan)
    }

    /// Lists every violated promise of a lookahead plan.
    pub(crate) fn check(&self, py: Python<'_>, planner: &Planner, plan: &LookaheadPlan) -> PyResult<Vec<String>> {
        let check = |lookahead: &Lookahead| {
            Ok(lookahead::check_lookahead(&plan.core, lookahead, planner.cost(), planner.link()))
        };
        let broken = detached(py, || self.with(check))?;
        Ok(broken.iter().map(ToString::to_string).collect())
    }

    fn with<T>(&self, work: impl FnOnce(&Lookahead) -> Result<T>) -> Result<T> {
        let batches = Batch::several(&self.lengths, self.targets.as_deref())?;
        let previous: Option<Strategy> = self.previous.as_ref().map(GivenStrategy::read).transpose()?;
        work(&Lookahead {
            batches: &batches,
            switch: Millis(self.switch_ms),
            previous: previous.as_ref(),
            max_delay: self.max_delay,
        })
    }
}
