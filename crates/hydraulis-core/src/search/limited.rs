//! Plans for a run that uses a limited number of distinct strategies.
//!
//! Each strategy costs a run something once, mainly process groups. A run may therefore be given a limit. The caller
//! passes the strategies used so far, so that a plan depends on these and the batch alone. After a resume they are read
//! from the recorded plans, and planning continues as it would have without the interruption.
//!
//! - While the limit admits further strategies, the batch is planned freely. A new strategy is taken only if it is shorter
//!   than the best used one by a tenth divided by the number of strategies left: the fewer are left, the more a new one
//!   must gain.
//! - The last strategy is reserved for one that admits the longest sequence that any strategy admits, unless a used
//!   strategy already does. Every batch of the run can therefore be planned.
//! - At the limit, the planner chooses among the used strategies, with the bound of that list.
//!
//! In runs of 100 batches a limit of 8 costs 0.3 to 1.3 % over a free search, and a limit of 4 costs 1 to 9 %: the
//! first strategies of a run are not the best ones for the whole run. The strategies of a proposal, passed as the first
//! ones used, serve a run best.

use crate::batch::Batch;
use crate::cancellation::{Cancellation, NEVER_CANCELLED};
use crate::error::{Result, StrategyError};
use crate::plan::Plan;
use crate::search::Planner;
use crate::spec::Strategy;
use crate::units::count;

/// The strategies of a run and their limit.
#[derive(Clone, Copy, Debug)]
pub struct RunLimit<'a> {
    /// Most distinct strategies that the run may use.
    pub most: usize,
    /// Distinct strategies used so far.
    pub used: &'a [Strategy],
}

impl Planner {
    /// The plan of a batch of a limited run: its strategy is a used one, or a new one within the limit.
    ///
    /// Refuses a limit of 0, a limit below the number of used strategies, and a sequence that no used strategy admits
    /// when no further strategy may be used.
    pub fn plan_limited(&self, batch: &Batch, limit: RunLimit) -> Result<Plan> {
        self.plan_limited_cancellable(batch, limit, NEVER_CANCELLED)
    }

    /// The same plan; an error from `cancellation` ends the work on it.
    pub fn plan_limited_cancellable(&self, batch: &Batch, limit: RunLimit, cancellation: Cancellation) -> Result<Plan> {
        let RunLimit { most, used } = limit;
        if most == 0 || used.len() > most {
            return Err(StrategyError::Limit { most, used: used.len() }.into());
        }
        let left = most - used.len();
        if left == 0 {
            return self.with_strategies(used.to_vec())?.plan_cancellable(batch, cancellation);
        }
        let known = self.plan_of_used(batch, used, cancellation)?;
        let is_last_kept = left == 1 && used.iter().all(|one| self.admitted_by(one) < self.longest_admitted());
        match known {
            Some(known) if is_last_kept => Ok(known),
            None if is_last_kept => self.widest_strategies()?.plan_cancellable(batch, cancellation),
            None => self.plan_cancellable(batch, cancellation),
            Some(known) => {
                let found = self.plan_cancellable(batch, cancellation)?;
                let worthwhile = known.step_ms() * (1.0 - self.budget().run.last_gain / count(left));
                Ok(if found.step_ms() < worthwhile { found } else { known })
            }
        }
    }

    /// The best plan under the used strategies; none if none of them admits the batch.
    fn plan_of_used(&self, batch: &Batch, used: &[Strategy], cancellation: Cancellation) -> Result<Option<Plan>> {
        let (_, longest) = batch.longest();
        let is_admitted = used.iter().any(|one| self.admitted_by(one) >= longest);
        is_admitted.then(|| self.with_strategies(used.to_vec())?.plan_cancellable(batch, cancellation)).transpose()
    }

    /// A planner over the strategies that admit the longest sequence, from the list or from the search's initial
    /// strategies.
    fn widest_strategies(&self) -> Result<Planner> {
        let wide = self.strategies().iter().filter(|one| self.admitted_by(one) == self.longest_admitted());
        self.with_strategies(wide.cloned().collect())
    }
}
