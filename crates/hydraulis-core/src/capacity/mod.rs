//! How much a replica can take by a given time.
//!
//! The one place that turns a time into work and tokens, for the bounds, which need the most that any packing
//! holds, and for dispatch and packing, which want to come near it.

mod capacities;
mod fill;
mod fill_table;
mod long_fill;
mod pace;
mod scheme_capacity;

pub use capacities::Capacities;
pub use fill::Fill;
pub use fill_table::FillTable;
pub use scheme_capacity::{Estimate, Level, SchemeCapacity};
