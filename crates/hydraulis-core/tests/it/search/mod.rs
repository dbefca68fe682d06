//! The planner: what it finds, and what it proves.

mod bound;
mod found;
mod hostile;
mod limited;
pub(crate) mod linked;
mod planner;
