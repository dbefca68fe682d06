//! Why the search for a plan ended.

use serde::{Deserialize, Serialize};

/// Why refinement stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// No move or swap that was tried shortens the slowest replica.
    LocalOptimum,
    /// The budget of packings was used up.
    WorkBudget,
}
