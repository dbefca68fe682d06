//! Which sequence goes to which replica.
//!
//! Longest first, each onto the replica that then ends earliest; then moves and swaps away from the slowest
//! replica for as long as the packed, simulated time falls; then micro-batches saved one by one.

mod assignment;
mod deal;
mod level;
mod load;
mod longest_first;
mod ranking;
mod refine;
mod save;
mod share;

pub use assignment::Assignment;
pub use level::{beside_placed, level};
pub(crate) use load::Load;
pub use longest_first::{estimate, longest_first};
pub use refine::{Limits, refine};
pub use save::{can_save, save_micro_batches};
