//! The time that a search minimises.

use crate::search::attempt::Attempt;
use crate::units::Millis;

/// Times within this share of each other count as equal; the cost model is no more accurate.
pub(crate) const TIE: f64 = 1e-3;

/// The judge of planned strategies, with its bound.
pub(super) trait Objective {
    /// The time by which an attempt is judged.
    fn ms(&self, attempt: &Attempt) -> Millis;

    /// A lower bound of the judged time, from a lower bound of the iteration time.
    fn bound(&self, iteration: Millis) -> Millis;

    /// The least judged time of these attempts; infinite without one.
    fn least(&self, attempts: &[Attempt]) -> Millis {
        attempts.iter().map(|attempt| self.ms(attempt)).min().unwrap_or(Millis::INFINITY)
    }

    /// The place of the best attempt: least time, and among those within [`TIE`] of it fewest bytes moved, then fewest
    /// GPU-seconds, then name order.
    fn best(&self, attempts: &[Attempt]) -> Option<usize> {
        let most = self.least(attempts) * (1.0 + TIE);
        let equal = (0..attempts.len()).filter(|&place| self.ms(&attempts[place]) <= most);
        equal.min_by(|&one, &other| attempts[one].cost_order(&attempts[other]))
    }
}

/// The iteration time alone: the objective of a planner without a link.
pub(super) struct IterationTime;

/// The iteration time with the exposed time of its transfers: the objective of a planner with a link.
pub(super) struct StepTime;

impl Objective for IterationTime {
    fn ms(&self, attempt: &Attempt) -> Millis {
        attempt.iteration_ms
    }

    fn bound(&self, iteration: Millis) -> Millis {
        iteration
    }
}

impl Objective for StepTime {
    fn ms(&self, attempt: &Attempt) -> Millis {
        attempt.transfers.map_or(attempt.iteration_ms, |transfers| transfers.step_ms)
    }

    /// No step is shorter than its iteration.
    fn bound(&self, iteration: Millis) -> Millis {
        iteration
    }
}
