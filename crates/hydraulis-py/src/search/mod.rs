//! The planner and its search budget.

pub(crate) mod planner;
pub(crate) mod search_budget;
