//! Lookahead: several batches planned together. Off unless asked for.
//!
//! Alone, each batch gets its fastest strategy. Over several batches two things are worth more:
//! - where a change of strategy takes time, a slower strategy may be kept: dynamic programming finds the cheapest
//!   sequence of all strategies considered for any of the batches, over bounds, and plans an entry only where the path
//!   passes;
//! - where a delay is allowed, the longest sequences of a batch are exchanged for shorter ones of another, judged by
//!   bounds and then planned. No sequence moves further than the delay; each batch keeps its tokens within 1 %, and a
//!   target. One sequence of 32,768 tokens sets the time of its batch, and a second one adds little.
//!
//! It costs a plan and the bounds of all candidates for each batch; with moves some dozen bounds for each pair of near
//! batches, and two plans for each exchange: 50 to 130 ms a batch on 32B and 64 GPUs, where a plan alone takes 12. The
//! sum of the bounds holds for the final batches; no bound over all moves is proven.
//!
//! The result is a pure function of the arguments, like a plan, and [`check_window`] judges members, delays, tokens and
//! costs again.

mod check;
mod course;
mod group;
mod plan_window;
mod regroup;
mod route;
mod window;

pub use check::check_window;
pub use plan_window::{Progress, plan_window};
pub use window::{Member, Step, TOLERANCE_PARTS, Window, WindowPlan};
