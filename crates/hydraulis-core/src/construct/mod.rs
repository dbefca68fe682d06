//! Builds a plan for one strategy: candidates and their neighbours, dispatch to replicas, packing into micro-batches.

mod candidates;
pub mod dispatch;
mod dominated;
mod layer_splits;
mod neighbours;
pub mod pack;

pub use candidates::{candidates, mixes, nothing_fits, usable_schemes, usable_strategies};
pub use dominated::undominated;
pub use layer_splits::with_layer_splits;
pub use neighbours::neighbours;
