//! The reliability of a prediction.

use serde::{Deserialize, Serialize};

/// A measured profile's statement on its own predictions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reliability {
    /// The expected relative error of a micro-batch like the measured ones.
    pub error: f64,
    /// Extrapolation factor beyond the measurements, by sequence or by tokens; 1 within them.
    pub factor: f64,
}
