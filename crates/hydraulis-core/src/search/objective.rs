//! The time that a search minimises.

pub(super) use crate::plan::TIE;
use crate::search::evaluation::Evaluation;
use crate::units::Millis;

/// The judge of planned strategies, with its bound.
pub(super) trait Objective {
    /// The time by which an evaluation is judged.
    fn ms(&self, evaluation: &Evaluation) -> Millis;

    /// The part of the judged time that lower bounds are about: all of it, or the iteration.
    fn bounded_ms(&self, evaluation: &Evaluation) -> Millis;

    /// Whether bounds and estimates leave out a part of the judged time.
    fn leaves_out_transfers(&self) -> bool {
        false
    }

    /// The least judged time of these evaluations; infinite without one.
    fn least(&self, evaluations: &[Evaluation]) -> Millis {
        evaluations.iter().map(|evaluation| self.ms(evaluation)).min().unwrap_or(Millis::INFINITY)
    }

    /// The place of the best evaluation: least time, and among those within [`TIE`] of it fewest bytes moved, then
    /// fewest GPU-seconds, then name order.
    fn best(&self, evaluations: &[Evaluation]) -> Option<usize> {
        let most = self.least(evaluations) * (1.0 + TIE);
        let equal = (0..evaluations.len()).filter(|&place| self.ms(&evaluations[place]) <= most);
        equal.min_by(|&one, &other| evaluations[one].cost_order(&evaluations[other]))
    }
}

/// The iteration time alone: the objective of a planner without a link.
pub(super) struct IterationTime;

/// The iteration time with the exposed time of its transfers: the objective of a planner with a link.
pub(super) struct StepTime;

/// The step time, with lower bounds on the iteration alone: no step is shorter than its iteration.
pub(super) struct StepTimeWithIterationBound;

impl Objective for IterationTime {
    fn ms(&self, evaluation: &Evaluation) -> Millis {
        evaluation.iteration_ms
    }

    fn bounded_ms(&self, evaluation: &Evaluation) -> Millis {
        evaluation.iteration_ms
    }
}

impl Objective for StepTime {
    fn ms(&self, evaluation: &Evaluation) -> Millis {
        evaluation.transfers.map_or(evaluation.iteration_ms, |transfers| transfers.step_ms)
    }

    fn bounded_ms(&self, evaluation: &Evaluation) -> Millis {
        self.ms(evaluation)
    }
}

impl Objective for StepTimeWithIterationBound {
    fn ms(&self, evaluation: &Evaluation) -> Millis {
        StepTime.ms(evaluation)
    }

    fn leaves_out_transfers(&self) -> bool {
        true
    }

    fn bounded_ms(&self, evaluation: &Evaluation) -> Millis {
        evaluation.iteration_ms
    }
}
