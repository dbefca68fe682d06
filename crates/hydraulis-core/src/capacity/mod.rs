//! The work and tokens that a replica can take by a given time.
//!
//! The one place that turns a time into work and tokens: bounds need the most of any packing; dispatch and packing aim
//! for it. The capacity of a pipeline is a linear program over the critical paths of 1F1B. Any weights of critical
//! paths prove a bound, so the bound stays valid if the program stops early; it only gets weaker. The program's
//! best times are also the shape in which a pipeline is packed. Above 64 micro-batches, where bounds count the slowest
//! stage's own work alone, the shape is that of 64 with a longer middle, an estimate.

mod capacities;
mod capacity_table;
mod class_capacity;
mod extended_capacity;
mod pipeline_capacity;
mod placed_classes;
mod relaxed_class;
mod work_table;

pub use capacities::Capacities;
pub use capacity_table::CapacityTable;
pub use class_capacity::{ClassCapacity, Estimate, Level};
pub use pipeline_capacity::PipelineCapacity;
pub(crate) use relaxed_class::RelaxedClass;
