//! How far a prediction can be trusted.

use serde::{Deserialize, Serialize};

/// What a measured profile says of its own predictions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trust {
    /// The relative error to expect of a micro-batch like those that were measured.
    pub error: f64,
    /// How many times further than these the micro-batches reach, by sequence or by tokens; 1 if they do not.
    pub beyond: f64,
}
