//! The memory of one rank, by use.

use std::ops::Add;

/// Bytes of a rank, by use.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RankMemory {
    /// Margin and transfer buffers.
    pub reserved: f64,
    /// The rank's optimizer shard: master parameters, their gradients and moments.
    pub optimizer: f64,
    /// Parameters and gradients of the rank's stage, and the head's gradient between the loss and its backward.
    pub resident: f64,
    /// Activations of the micro-batches in flight.
    pub activations: f64,
}

impl RankMemory {
    /// Sum of all uses.
    pub fn total(&self) -> f64 {
        [self.reserved, self.optimizer, self.resident, self.activations].into_iter().fold(0.0, Add::add)
    }
}
