//! Lookahead: plans several batches together. It is off by default.
//!
//! Without lookahead, each batch gets its fastest strategy. Over several batches, two choices save more time:
//! - Where a change of strategy takes time, the planner may keep a slower strategy. Dynamic programming over bounds
//!   finds the cheapest path through all strategies evaluated for any of the batches, and plans an entry only where
//!   the path passes.
//! - Where a delay is allowed, the longest sequences of one batch are exchanged for shorter ones of another; each
//!   exchange is evaluated by bounds and then planned. No sequence moves further than the delay. Each batch keeps its
//!   tokens within 1 %, and a target. One sequence of 32,768 tokens sets the time of its batch, and a second one adds
//!   little.
//!
//! Lookahead takes a plan and the bounds of all candidates for each batch. With moves it also takes some dozen bounds
//! for each pair of near batches, and two plans for each exchange: 50 to 130 ms per batch on 32B and 64 GPUs, where a
//! plan alone takes 12. The sum of the bounds holds for the final batches; no bound over all moves is proven.
//!
//! The result is a pure function of the arguments, like a plan. [`check_lookahead`] checks members, delays, tokens and
//! costs independently.

mod cheapest_path;
mod check;
mod group;
mod plan_lookahead;
mod regroup;
mod request;
mod strategy_path;

pub use check::check_lookahead;
pub use plan_lookahead::{Progress, plan_lookahead};
pub use request::{Lookahead, LookaheadPlan, Member, Step, TOLERANCE_PARTS};
