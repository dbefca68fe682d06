//! Checks plans. It shares no code with the modules that make plans, all of which are declared after it.
//!
//! It derives sequences, caps, ranks and times again, and lists every violation. It cannot judge the strength of the
//! bound.

mod plan;
mod replica_times;
mod rounds;
mod transfers;

pub use plan::{Violation, check};
