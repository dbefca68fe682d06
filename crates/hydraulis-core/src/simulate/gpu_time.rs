//! Where the time of all ranks goes.

use std::ops::AddAssign;

use crate::units::Millis;

/// The time of all ranks of a cluster in one step, in parts; their sum is ranks times step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GpuTime {
    /// Computing.
    pub compute: Millis,
    /// Waiting inside a layer for a slower rank of the same stage.
    pub slower_rank: Millis,
    /// Waiting for another stage, until the replica's last stage has ended: the pipeline's bubble, messages included.
    pub bubble: Millis,
    /// Waiting for the slowest replica; of a replica without work, all the time.
    pub slower_replica: Millis,
    /// Of ranks that the strategy leaves out, while others compute.
    pub unused: Millis,
    /// Of all ranks, what transfers add to the iteration; none where no links are given.
    pub transfers: Millis,
}

impl GpuTime {
    /// All of it.
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
