//! Assigns sequences to replicas.
//!
//! Each sequence, longest first, goes to the replica that then ends earliest. Where replicas have few sequences each, first
//! fit is tried too. Moves and swaps away from the slowest replica follow as long as the packed, simulated time falls. Few
//! sequences are then assigned by branch and bound, and micro-batches are merged one by one.

mod assigner;
mod assignment;
mod exact;
mod exchanges;
mod first_fit;
mod load;
mod longest_first;
mod merge;
mod rebalance;
mod refine;
mod share;
mod totals;

pub use assignment::{Assignment, Waits};
pub use exact::{assign_exactly, can_assign_exactly};
pub(crate) use first_fit::{FirstFit, or_first_fit};
pub(crate) use load::Load;
pub use longest_first::{estimate, longest_first};
pub use merge::{can_merge, merge_micro_batches};
pub use rebalance::{assign_to_placed, rebalance};
pub use refine::{Limits, refine};
