//! What is asked of a planning window, and what comes of it.

use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::spec::Strategy;
use crate::units::Millis;

/// Where sequences move, a batch may have one part in so many more or fewer tokens than it came with: 1 %.
pub const TOLERANCE_PARTS: u64 = 100;

/// The batches, in the order of their iterations, and what counts beside the iterations themselves.
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    /// The batches as they came.
    pub batches: &'a [Batch],
    /// What an iteration takes more if its strategy is another than that of the iteration before.
    pub switch: Millis,
    /// The strategy of the iteration before the first; where there is none, the first is no switch.
    pub previous: Option<&'a Strategy>,
    /// How many batches later or earlier than it came a sequence may be trained.
    pub max_delay: usize,
}

/// The plans of a window's iterations, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowPlan {
    /// One for each batch.
    pub steps: Vec<Step>,
}

/// One iteration of a window.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The plan of the batch as it now is.
    pub plan: Plan,
    /// Which sequences that batch has: the plan's sequence `i` is `members[i]`, in the order in which they came.
    pub members: Vec<Member>,
    /// What the change of strategy takes; nothing where there is none.
    pub switch_ms: Millis,
}

/// A sequence of the batches as they came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// Place of its batch.
    pub batch: usize,
    /// Its id there.
    pub sequence: usize,
}

impl<'a> Window<'a> {
    /// These batches, each planned as it came, and nothing counted but the iterations.
    pub fn new(batches: &'a [Batch]) -> Window<'a> {
        Window { batches, switch: Millis::ZERO, previous: None, max_delay: 0 }
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

impl WindowPlan {
    /// All iterations.
    pub fn iteration_ms(&self) -> Millis {
        self.steps.iter().map(|step| step.plan.iteration_ms).sum()
    }

    /// All changes of strategy.
    pub fn switch_ms(&self) -> Millis {
        self.steps.iter().map(|step| step.switch_ms).sum()
    }

    /// What transfers add to all iterations; nothing where the planner had no link.
    pub fn transfer_ms(&self) -> Millis {
        self.steps.iter().filter_map(|step| step.plan.transfers).map(|transfers| transfers.transfer_ms).sum()
    }

    /// Iterations, changes and transfers: what is minimised.
    pub fn step_ms(&self) -> Millis {
        self.iteration_ms() + self.switch_ms() + self.transfer_ms()
    }

    /// The sum of the plans' bounds: no strategies, dispatch or packing of the batches *as they now are* make the
    /// iterations shorter together. Other moves of sequences might.
    pub fn lower_bound_ms(&self) -> Millis {
        self.steps.iter().map(|step| step.plan.lower_bound.ms).sum()
    }

    /// How many sequences are trained in another iteration than the one they came for.
    pub fn moved(&self) -> usize {
        let away = |(place, step): (usize, &Step)| step.members.iter().filter(|member| member.batch != place).count();
        self.steps.iter().enumerate().map(away).sum()
    }
}
