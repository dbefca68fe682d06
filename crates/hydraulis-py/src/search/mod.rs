//! The planner, and how much it looks at.

pub(crate) mod effort;
pub(crate) mod planner;
