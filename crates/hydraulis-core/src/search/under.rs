//! The plan of an already planned batch under another strategy.

use crate::error::Result;
use crate::plan::{Considered, Outcome, Plan};
use crate::search::Planner;
use crate::spec::Strategy;
use crate::watch::Watch;

impl Planner {
    /// The plan of the same batch under `strategy`, which the first plan's bound covers and which admits the batch. The
    /// bound is kept, and an error from `watch` ends the work.
    pub(crate) fn under(&self, plan: &Plan, strategy: &Strategy, watch: Watch) -> Result<Plan> {
        if plan.strategy == *strategy {
            return Ok(plan.clone());
        }
        let task = self.task(&plan.batch, watch);
        let attempt = task.attempt(strategy)?;
        let mut considered = plan.considered.clone();
        let outcome = Outcome::Planned(task.objective.ms(&attempt));
        match considered.iter_mut().find(|one| one.strategy == *strategy) {
            Some(known) => known.outcome = outcome,
            None => considered.push(Considered { strategy: strategy.clone(), outcome }),
        }
        Ok(Plan {
            replicas: self.replicas(&plan.batch, &attempt)?,
            strategy: strategy.clone(),
            iteration_ms: attempt.iteration_ms,
            transfers: attempt.transfers,
            stop: attempt.stop,
            considered,
            ..plan.clone()
        })
    }
}
