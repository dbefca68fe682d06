//! Lists of strategies for a run.

mod paper;
mod proposal;
