//! The best of the strategies, dispatched, packed, bounded and checked.

mod attempt;
mod effort;
mod limited;
mod local_search;
mod planner;
mod sizing;
mod times;
mod transfers;
mod under;

pub(crate) use attempt::TIE;
pub use effort::Effort;
pub use limited::RunLimit;
pub use planner::Planner;
pub(crate) use times::Times;
