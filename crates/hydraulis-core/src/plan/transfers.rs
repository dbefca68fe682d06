//! The transfers of a plan.

use serde::{Deserialize, Serialize};

use crate::units::Millis;

/// The transfers of an iteration on its simulated timeline, by the planner's link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedTransfers {
    /// Time from updated parameters at their owners to all gradients at their owners.
    pub step_ms: Millis,
    /// Exposed time of the transfers: the step less the iteration.
    pub transfer_ms: Millis,
    /// Time of all transfers one after another, without overlap.
    pub alone_ms: Millis,
    /// Bytes that cross between nodes, both ways.
    pub moved_bytes: u64,
}

impl PlannedTransfers {
    /// The share of the transfers' own time that overlaps computation; 1 if nothing moves.
    pub fn overlapped(&self) -> f64 {
        // Rounding may make a difference of long times exceed the transfers' own time.
        if self.alone_ms.0 > 0.0 { (1.0 - self.transfer_ms.0 / self.alone_ms.0).max(0.0) } else { 1.0 }
    }
}
