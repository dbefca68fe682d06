//! Plans the batches of a lookahead together.

use crate::cancellation::Cancellation;
use crate::error::Result;
use crate::lookahead::group::Group;
use crate::lookahead::regroup::regroup;
use crate::lookahead::strategy_path;
use crate::lookahead::{Lookahead, LookaheadPlan};
use crate::search::Planner;

/// The progress of a lookahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Some batches are planned as they came, and the next one begins.
    Planned {
        /// Number of planned batches.
        batches: usize,
        /// Number of all batches.
        of: usize,
    },
    /// Some exchanges of sequences between batches are planned, and the next one begins.
    Exchanged {
        /// Number of planned exchanges.
        exchanges: usize,
        /// Greatest possible number of exchanges.
        of: usize,
    },
}

/// The plans of the lookahead's iterations with the least total time: iterations, changes of strategy and, where the
/// planner has a link, transfers.
///
/// Sequences move only if `max_delay` allows it, and only where the moves shorten the total. A sequence is trained at
/// most `max_delay` batches later or earlier than its own batch, and always inside the lookahead. Each batch keeps its
/// tokens to within one part in [`TOLERANCE_PARTS`](crate::lookahead::TOLERANCE_PARTS). A lookahead of one batch
/// without costs equals [`Planner::plan`]. The planner calls `report` at each step and `cancellation` within the steps;
/// an error from either ends the planning.
///
/// # Errors
///
/// The planner refuses an empty list of batches, a switch cost that is negative or not finite, and a sequence that no
/// strategy admits.
pub fn plan_lookahead(
    planner: &Planner,
    lookahead: &Lookahead,
    cancellation: Cancellation,
    report: &mut dyn FnMut(Progress) -> Result<()>,
) -> Result<LookaheadPlan> {
    lookahead.validate()?;
    let number = lookahead.batches.len();
    let mut groups = Vec::new();
    for place in 0..number {
        report(Progress::Planned { batches: place, of: number })?;
        groups.push(Group::as_it_came(planner, lookahead.batches, place, cancellation)?);
    }
    let regrouped = regroup(planner, lookahead, &groups, cancellation, report)?;
    let as_they_came = strategy_path::steps(planner, lookahead, groups, cancellation)?;
    let Some(regrouped) = regrouped else { return Ok(as_they_came) };
    // The iterations are shorter, but their strategies may differ more and so cost more in changes.
    let regrouped = strategy_path::steps(planner, lookahead, regrouped, cancellation)?;
    Ok(if regrouped.step_ms() < as_they_came.step_ms() { regrouped } else { as_they_came })
}
