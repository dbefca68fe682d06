//! The plan of an already planned batch under another strategy.

use crate::cancellation::Cancellation;
use crate::error::Result;
use crate::plan::{Candidate, Outcome, Plan};
use crate::search::Planner;
use crate::spec::Strategy;

impl Planner {
    /// The plan of the same batch under `strategy`, which the first plan's bound covers and which admits the batch. The
    /// bound is kept, and an error from `cancellation` ends the work.
    pub(crate) fn with_strategy(&self, plan: &Plan, strategy: &Strategy, cancellation: Cancellation) -> Result<Plan> {
        if plan.strategy == *strategy {
            return Ok(plan.clone());
        }
        let task = self.task(&plan.batch, cancellation);
        let evaluation = task.evaluate(strategy)?;
        let mut candidates = plan.candidates.clone();
        let outcome = Outcome::Planned(task.objective.ms(&evaluation));
        match candidates.iter_mut().find(|one| one.strategy == *strategy) {
            Some(known) => known.outcome = outcome,
            None => candidates.push(Candidate { strategy: strategy.clone(), outcome }),
        }
        Ok(Plan {
            replicas: self.replicas(&plan.batch, &evaluation)?,
            strategy: strategy.clone(),
            iteration_ms: evaluation.iteration_ms,
            transfers: evaluation.transfers,
            stop: evaluation.stop,
            candidates,
            ..plan.clone()
        })
    }
}
