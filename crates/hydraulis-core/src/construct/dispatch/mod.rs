//! Assigns sequences to replicas.
//!
//! Each sequence, longest first, goes to the replica that then ends earliest. Moves and swaps away from the slowest
//! replica follow as long as the packed, simulated time falls. Then micro-batches are merged one by one.

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
