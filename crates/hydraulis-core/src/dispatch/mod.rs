//! Stage 4: which sequence goes to which replica.
//!
//! Longest first, each onto the replica that then ends earliest; then moves and swaps away from the slowest
//! replica for as long as the packed, simulated time falls.

mod assignment;
mod load;
mod longest_first;
mod ranking;
mod refine;

pub use assignment::Assignment;
pub(crate) use load::Load;
pub use longest_first::{estimate, longest_first};
pub use refine::{Stop, refine};
