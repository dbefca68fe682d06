//! A link with the owner layout of its transfers.

use crate::error::Result;
use crate::layout::{OptimizerShards, Position};
use crate::spec::{Cluster, Scheme};
use crate::timing::{Link, TransferTimes};

/// A link with the owner layout of one run, which all iterations of the run share: building the layout takes longer
/// than counting an iteration's transfers.
#[derive(Clone, Debug, PartialEq)]
pub struct RunLink {
    link: Link,
    shards: OptimizerShards,
}

impl RunLink {
    /// The link of a run on `cluster` whose replicas have only these schemes; refused as [`OptimizerShards::new`].
    pub fn new(link: Link, cluster: &Cluster, schemes: &[Scheme]) -> Result<RunLink> {
        let shards = OptimizerShards::new(link.table(), cluster, schemes)?;
        Ok(RunLink { link, shards })
    }

    /// The link alone.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// The transfer times of an iteration in which each rank has its position; see [`Link::transfer_times`].
    pub fn transfer_times(&self, positions: &[Option<Position>]) -> Result<TransferTimes> {
        self.link.times_from(&self.shards, positions)
    }
}
