//! The judge of plans: it shares no code with those that make them, which are all declared after it.

mod plan;
mod transfers;

pub use plan::{Violation, check};
