//! The plan: a value, its JSON form, and the timelines that follow from it.
//!
//! A plan holds strategy, placement, assignment, packing, prediction, a proven lower bound, and the outcome of every
//! strategy evaluated. The same lengths, targets, profile, cluster and strategies give the same bytes.
//!
//! With a link, a plan has the shortest step found, and among steps within 0.1 % the one that moves the fewest bytes.
//! Its bound counts the transfers that no packing overlaps.
//!
//! For each replica the plan states the profile's error, and how far its times extrapolate beyond the measured points.
//! Every command that predicts reports extrapolation.

mod document;
mod extrapolation;
mod timeline;

pub use document::{Bound, BoundKind, Candidate, Outcome, Plan, PlannedTransfers, ReplicaPlan, Scope, Stop};
pub(crate) use document::{FORMAT, TIE};
pub use extrapolation::Extrapolation;
pub(crate) use timeline::predicted_times;
pub use timeline::{measured_timeline, predicted_timeline};
