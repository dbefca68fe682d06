//! The request for a lookahead, and its result.

use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::spec::Strategy;
use crate::units::Millis;

/// The tolerance of a batch's tokens where sequences move: a batch may gain or lose one part in this number, 1 %.
pub const TOLERANCE_PARTS: u64 = 100;

/// The batches in the order of their iterations, and the costs and limits of the lookahead.
#[derive(Clone, Copy, Debug)]
pub struct Lookahead<'a> {
    /// The original batches.
    pub batches: &'a [Batch],
    /// Extra time of an iteration whose strategy differs from that of the iteration before.
    pub switch: Millis,
    /// The strategy of the iteration before the first. Without one, the first iteration is no switch.
    pub previous: Option<&'a Strategy>,
    /// The greatest distance, in batches later or earlier, between a sequence's own batch and its iteration.
    pub max_delay: usize,
}

/// The plans of a lookahead's iterations, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct LookaheadPlan {
    /// One step for each batch.
    pub steps: Vec<Step>,
}

/// One iteration of a lookahead.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The plan of the batch after all moves.
    pub plan: Plan,
    /// The sequences of that batch: the plan's sequence `i` is `members[i]`. The members keep their original order.
    pub members: Vec<Member>,
    /// Time of the change of strategy; zero where there is no change.
    pub switch_ms: Millis,
}

/// A sequence of the original batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// Place of the sequence's batch.
    pub batch: usize,
    /// Id of the sequence in that batch.
    pub sequence: usize,
}

impl<'a> Lookahead<'a> {
    /// A lookahead over these batches that moves no sequence and counts only the iterations.
    pub fn new(batches: &'a [Batch]) -> Lookahead<'a> {
        Lookahead { batches, switch: Millis::ZERO, previous: None, max_delay: 0 }
    }

    pub(super) fn validate(&self) -> Result<()> {
        if self.batches.is_empty() {
            return Err(Error::NoBatches);
        }
        if !(self.switch >= Millis::ZERO && self.switch.0.is_finite()) {
            return Err(Error::SwitchCost { value: self.switch.0.to_string() });
        }
        Ok(())
    }
}

impl LookaheadPlan {
    /// The total time of all iterations.
    pub fn iteration_ms(&self) -> Millis {
        self.steps.iter().map(|step| step.plan.iteration_ms).sum()
    }

    /// The total time of all changes of strategy.
    pub fn switch_ms(&self) -> Millis {
        self.steps.iter().map(|step| step.switch_ms).sum()
    }

    /// The time that transfers add to all iterations; zero where the planner had no link.
    pub fn transfer_ms(&self) -> Millis {
        self.steps.iter().filter_map(|step| step.plan.transfers).map(|transfers| transfers.transfer_ms).sum()
    }

    /// The total time of iterations, changes and transfers, which the lookahead minimises.
    pub fn step_ms(&self) -> Millis {
        self.iteration_ms() + self.switch_ms() + self.transfer_ms()
    }

    /// The sum of the plans' lower bounds. No strategies, dispatch or packing of the batches *after the moves* make
    /// the sum of the iterations shorter, or with a link that of the steps; other moves of sequences might.
    pub fn lower_bound_ms(&self) -> Millis {
        self.steps.iter().map(|step| step.plan.lower_bound.ms).sum()
    }

    /// The number of sequences that are trained in another iteration than that of their own batch.
    pub fn moved(&self) -> usize {
        let away = |(place, step): (usize, &Step)| step.members.iter().filter(|member| member.batch != place).count();
        self.steps.iter().enumerate().map(away).sum()
    }
}
