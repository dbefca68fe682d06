//! Plans the batches of a window together.

use crate::error::Result;
use crate::lookahead::course;
use crate::lookahead::group::Group;
use crate::lookahead::regroup::regroup;
use crate::lookahead::{Window, WindowPlan};
use crate::search::Planner;
use crate::watch::Watch;

/// How far the planning of a window has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Some batches are planned as they came, and the next one begins.
    Planned {
        /// Those done.
        batches: usize,
        /// All of them.
        of: usize,
    },
    /// Some exchanges of sequences between batches were planned, and the next one begins.
    Exchanged {
        /// Those done.
        exchanges: usize,
        /// Most there may be.
        of: usize,
    },
}

/// The plans of the window's iterations that take least together: iterations, changes of strategy, and transfers where
/// the planner has a link.
///
/// Nothing moves unless `max_delay` allows it, and then only where the window gets shorter by it. A sequence is trained
/// at most `max_delay` batches later or earlier than it came, and never outside of the window; each batch keeps its
/// tokens to within one part in [`TOLERANCE_PARTS`](crate::lookahead::TOLERANCE_PARTS). A window of one batch, without
/// costs, is [`Planner::plan`]. `tell` hears of each step, `watch` is called within them, and either ends the planning by
/// its error.
///
/// Refused: no batches, a cost that is none, a sequence that no strategy admits.
pub fn plan_window(
    planner: &Planner,
    window: &Window,
    watch: Watch,
    tell: &mut dyn FnMut(Progress) -> Result<()>,
) -> Result<WindowPlan> {
    window.validate()?;
    let number = window.batches.len();
    let mut groups = Vec::new();
    for place in 0..number {
        tell(Progress::Planned { batches: place, of: number })?;
        groups.push(Group::as_it_came(planner, window.batches, place, watch)?);
    }
    let regrouped = regroup(planner, window, &groups, watch, tell)?;
    let as_they_came = course::steps(planner, window, groups, watch)?;
    let Some(regrouped) = regrouped else { return Ok(as_they_came) };
    // Iterations got shorter, but strategies that differ more may cost more in changes.
    let regrouped = course::steps(planner, window, regrouped, watch)?;
    Ok(if regrouped.step_ms() < as_they_came.step_ms() { regrouped } else { as_they_came })
}
