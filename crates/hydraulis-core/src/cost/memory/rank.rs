//! What the memory of one rank is taken for.

use std::ops::Add;

/// Bytes of a rank, by what they hold.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RankMemory {
    /// Margin, and transfer buffers.
    pub reserved: f64,
    /// Its share of master parameters, their gradients and moments.
    pub home: f64,
    /// Parameters and gradients of its stage, and the head's gradient between the loss and its backward.
    pub held: f64,
    /// Activations of the micro-batches in flight.
    pub activations: f64,
}

impl RankMemory {
    /// All of them.
    pub fn total(&self) -> f64 {
        [self.reserved, self.home, self.held, self.activations].into_iter().fold(0.0, Add::add)
    }
}
