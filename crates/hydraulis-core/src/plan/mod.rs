//! Stage 6: the best of the strategies, dispatched, packed, bounded and checked.

mod attempt;
mod bound;
mod check;
mod check_transfers;
mod document;
mod effort;
mod explain;
mod guess;
mod limited;
mod planner;
mod search;
mod sizing;
mod timeline;
mod times;
mod transfers;
mod under;
mod wrapped;

pub use bound::{Bound, BoundKind};
pub use check::{Violation, check};
pub use document::{Considered, Outcome, Plan, ReplicaPlan, Scope};
pub use effort::Effort;
pub use explain::explain;
pub use guess::Guess;
pub use limited::RunLimit;
pub use planner::Planner;
pub(crate) use timeline::predicted_times;
pub use timeline::{measured_timeline, predicted_timeline};
pub(crate) use times::Times;
pub use transfers::PlannedTransfers;
