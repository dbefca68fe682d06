//! What was measured of the links between ranks.

use serde::{Deserialize, Serialize};

/// One kind of exchange among so many ranks: `latency_ms + bytes / gigabytes_per_s / 1e6` milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredLink {
    /// What was exchanged: `send`, `all_reduce` or `all_to_all`.
    pub operation: String,
    /// Ranks that took part.
    pub ranks: u32,
    /// Time of the smallest exchange.
    pub latency_ms: f64,
    /// Bytes of one rank's buffer a second, in 1e9.
    pub gigabytes_per_s: f64,
}
