//! What was measured of the links between ranks.

use serde::{Deserialize, Serialize};

use crate::cost::CostProfile;

/// One kind of exchange among so many ranks: `latency_ms + bytes / gigabytes_per_s / 1e6` milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredLink {
    /// What was exchanged: by `send` each rank of the first half gives its buffer to the one in its place in the second half,
    /// as the ranks of neighbouring stages do; by `all_to_all` each has a share for each other one, as transfers do.
    pub operation: String,
    /// Ranks that took part, the first of the cluster.
    pub ranks: u32,
    /// Time of the smallest exchange.
    pub latency_ms: f64,
    /// Bytes of one rank's buffer a second, in 1e9.
    pub gigabytes_per_s: f64,
}

impl CostProfile {
    /// What the widest message was measured to take whose sender and receiver are in one node.
    pub fn send_inside(&self) -> Option<&MeasuredLink> {
        self.widest_send(|half, node| 2 * half <= node)
    }

    /// The same where all senders are in other nodes than their receivers; each node then has as many senders as ranks.
    pub fn send_between(&self) -> Option<&MeasuredLink> {
        self.widest_send(u32::is_multiple_of)
    }

    /// `is_meant` takes the senders, and the ranks of a node.
    fn widest_send(&self, is_meant: impl Fn(u32, u32) -> bool) -> Option<&MeasuredLink> {
        let node = self.hardware.gpus_per_node;
        let is_send =
            |link: &&MeasuredLink| link.operation == "send" && link.ranks >= 2 && is_meant(link.ranks / 2, node);
        self.hardware.links.iter().filter(is_send).max_by_key(|link| link.ranks)
    }
}
