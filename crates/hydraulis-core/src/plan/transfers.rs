//! What the transfers of a plan add to its iteration.

use serde::{Deserialize, Serialize};

use crate::units::Millis;

/// The transfers of an iteration on its simulated timeline, by the planner's link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedTransfers {
    /// From new parameters at home to all gradients at home.
    pub step_ms: Millis,
    /// What of that is beyond the iteration: transfers that are not hidden.
    pub transfer_ms: Millis,
    /// What all transfers take one after another, nothing hidden.
    pub alone_ms: Millis,
    /// Bytes that cross between nodes, both ways.
    pub moved_bytes: u64,
}

impl PlannedTransfers {
    /// The share of the transfers' own time that computation hides; all of it where nothing moves.
    pub fn hidden(&self) -> f64 {
        // Differences of long times may exceed what they are the differences of, in their last bits.
        if self.alone_ms.0 > 0.0 { (1.0 - self.transfer_ms.0 / self.alone_ms.0).max(0.0) } else { 1.0 }
    }
}
