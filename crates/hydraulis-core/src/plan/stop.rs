//! Reasons why the search for a plan ended.

use serde::{Deserialize, Serialize};

/// The reason why refinement stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// No evaluated move or swap shortens the slowest replica.
    LocalOptimum,
    /// The budget of packings was used up.
    WorkBudget,
}
