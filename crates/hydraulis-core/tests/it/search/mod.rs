//! The planner: its plans and its lower bounds.

mod bound;
mod found;
mod hostile;
mod layer_splits;
mod limited;
pub(crate) mod linked;
mod planner;
mod rates;
