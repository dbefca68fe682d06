//! A link, and the home that transfers over it begin and end at.

use crate::error::Result;
use crate::layout::{Home, Position};
use crate::spec::{Cluster, Scheme};
use crate::timing::{Link, TransferTimes};

/// A link with the home layout of one run, which all iterations of the run share: to lay it out takes longer than to count what
/// an iteration moves.
#[derive(Clone, Debug, PartialEq)]
pub struct HomeLink {
    link: Link,
    home: Home,
}

impl HomeLink {
    /// The link of a run on `cluster` whose replicas are of these schemes alone; refused as [`Home::new`].
    pub fn new(link: Link, cluster: Cluster, schemes: &[Scheme]) -> Result<HomeLink> {
        let home = Home::new(link.table(), cluster, schemes)?;
        Ok(HomeLink { link, home })
    }

    /// The link alone.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// What the transfers of an iteration take in which each rank stands at its position; see [`Link::transfer_times`].
    pub fn transfer_times(&self, positions: &[Option<Position>]) -> Result<TransferTimes> {
        self.link.times_from(&self.home, positions)
    }
}
