//! How long an iteration's transfers take, and what of them it waits for.
//!
//! A [`Link`] turns the bytes of a layout's transfers into times, a [`HomeLink`] does so for many iterations of one run, and
//! a [`StepTimeline`] lays them out beside what the replicas compute.

mod home_link;
mod link;
mod step;
mod transfer_times;

pub use home_link::HomeLink;
pub use link::Link;
pub use step::{ReplicaWork, StepTimeline};
pub use transfer_times::{Traffic, TransferTimes};
