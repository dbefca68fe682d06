//! The time of all ranks by use.

use std::ops::AddAssign;

use crate::units::Millis;

/// The time of all ranks of a cluster in one step, in parts. The sum of the parts is the number of ranks times the step
/// time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GpuTime {
    /// Time that ranks compute.
    pub compute: Millis,
    /// Time that ranks wait inside a layer for a slower rank of the same stage.
    pub slower_rank: Millis,
    /// Time that ranks wait for another stage until the replica's last stage ends: the pipeline's bubble, including
    /// messages.
    pub bubble: Millis,
    /// Time that ranks wait for the slowest replica. A replica without work waits all the time.
    pub slower_replica: Millis,
    /// Time of ranks outside the strategy while other ranks compute.
    pub unused: Millis,
    /// Time that transfers add to the iteration, over all ranks. Zero without links.
    pub transfers: Millis,
}

impl GpuTime {
    /// Sum of all parts.
    pub fn total(&self) -> Millis {
        self.compute + self.slower_rank + self.bubble + self.slower_replica + self.unused + self.transfers
    }
}

impl AddAssign for GpuTime {
    fn add_assign(&mut self, other: GpuTime) {
        self.compute += other.compute;
        self.slower_rank += other.slower_rank;
        self.bubble += other.bubble;
        self.slower_replica += other.slower_replica;
        self.unused += other.unused;
        self.transfers += other.transfers;
    }
}
