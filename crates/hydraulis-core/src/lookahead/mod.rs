//! Several batches planned together: a planning window.
//!
//! Alone, each batch gets the strategy that is fastest for it. Over a window two things are worth more than that, and
//! both are off unless asked for:
//! - where a change of strategy takes time, a strategy that is second best may be kept (`course`): the
//!   cheapest sequence of the strategies that were considered for any of the batches, by dynamic programming;
//! - where sequences may be trained a little later or earlier than they came, long ones are gathered in few batches
//!   (`regroup`): one sequence of 32,768 tokens sets the time of its batch, and another one beside it adds little.
//!
//! It costs a plan and the bounds of all candidates for each batch; with moves some dozen bounds for each pair of near
//! batches, and two plans for each exchange: 50 to 130 ms a batch on 32B and 64 GPUs, where a plan alone takes 12. No
//! bound over all moves is proven.
//!
//! A window is a pure function of what is given, like a plan, and [`check_window`] judges it anew.

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
