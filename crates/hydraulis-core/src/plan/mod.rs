//! The plan: a value, its JSON form, and the timelines that follow from it.

mod bound;
mod document;
mod guess;
mod stop;
mod timeline;
mod transfers;

pub use bound::{Bound, BoundKind};
pub(crate) use document::FORMAT;
pub use document::{Considered, Outcome, Plan, ReplicaPlan, Scope};
pub use guess::Guess;
pub use stop::Stop;
pub(crate) use timeline::predicted_times;
pub use timeline::{measured_timeline, predicted_timeline};
pub use transfers::PlannedTransfers;
