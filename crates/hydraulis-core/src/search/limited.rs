//! A run that uses only so many distinct strategies.
//!
//! Each strategy costs a run something once, process groups above all. So a run may be given a limit. Which strategies
//! it used so far is no hidden state: the caller gives them, and a plan depends on them and on the batch alone. After a
//! resume they are read off the plans that were recorded, and planning goes on as it would have gone on.
//!
//! - While strategies are left to admit, the batch is planned freely. A strategy that is new is taken only if it is
//!   shorter by a tenth of the best of those used, divided by the number left: the fewer, the more one must gain.
//! - The last one is kept for a strategy that admits the longest sequence that any does, unless one of those used
//!   already does: so every batch of the run can be planned.
//! - Then the planner chooses among those used, with the bound of that list.
//!
//! A limit of 8 costs 0.3 to 1.3 % over a free search in runs of 100 batches, of 4 it costs 1 to 9 %: what comes first
//! is not what serves a run best. A proposal, given as the first strategies used, does.

use crate::batch::Batch;
use crate::error::{Result, StrategyError};
use crate::plan::Plan;
use crate::search::Planner;
use crate::spec::Strategy;
use crate::units::count;
use crate::watch::{UNWATCHED, Watch};

/// What a new strategy must gain when it is the last. A twelfth to a sixth did as well on seven runs; with an equal
/// share for each, 1 or 2 %, a limit of 8 cost up to 3 %.
const GAIN: f64 = 0.1;

/// The strategies of a run.
#[derive(Clone, Copy, Debug)]
pub struct RunLimit<'a> {
    /// Most that it may use.
    pub most: usize,
    /// Those that it used so far, each once.
    pub used: &'a [Strategy],
}

impl Planner {
    /// The plan of a batch of a run that is limited: its strategy is one that was used, or one more within the limit.
    ///
    /// Refused: a limit of 0 or of fewer than were used, or a sequence that none of them admits when no more may be
    /// used.
    pub fn plan_limited(&self, batch: &Batch, limit: RunLimit) -> Result<Plan> {
        self.plan_limited_watched(batch, limit, UNWATCHED)
    }

    /// The same plan, unless `watch` ends the work on it.
    pub fn plan_limited_watched(&self, batch: &Batch, limit: RunLimit, watch: Watch) -> Result<Plan> {
        let RunLimit { most, used } = limit;
        if most == 0 || used.len() > most {
            return Err(StrategyError::Limit { most, used: used.len() }.into());
        }
        let left = most - used.len();
        if left == 0 {
            return self.over(used.to_vec())?.plan_watched(batch, watch);
        }
        let known = self.plan_of_used(batch, used, watch)?;
        let is_last_kept = left == 1 && used.iter().all(|one| self.admitted_by(one) < self.longest_admitted());
        match known {
            Some(known) if is_last_kept => Ok(known),
            None if is_last_kept => self.widest_strategies()?.plan_watched(batch, watch),
            None => self.plan_watched(batch, watch),
            Some(known) => {
                let found = self.plan_watched(batch, watch)?;
                let worthwhile = known.step_ms() * (1.0 - GAIN / count(left));
                Ok(if found.step_ms() < worthwhile { found } else { known })
            }
        }
    }

    /// The best plan under the strategies used; none where no one of them admits the batch.
    fn plan_of_used(&self, batch: &Batch, used: &[Strategy], watch: Watch) -> Result<Option<Plan>> {
        let (_, longest) = batch.longest();
        let is_admitted = used.iter().any(|one| self.admitted_by(one) >= longest);
        is_admitted.then(|| self.over(used.to_vec())?.plan_watched(batch, watch)).transpose()
    }

    /// A planner over those strategies, of the list or that a search begins with, that admit the longest sequence.
    fn widest_strategies(&self) -> Result<Planner> {
        let wide = self.strategies().iter().filter(|one| self.admitted_by(one) == self.longest_admitted());
        self.over(wide.cloned().collect())
    }
}
