//! Measurements of the links between ranks, and the model whose tensors travel over them.

use serde::{Deserialize, Serialize};

use crate::cost::CostProfile;
use crate::error::{LinkError, Result};
use crate::spec::{Cluster, Dtype, LinkRates, ModelShape};

/// One kind of exchange among `ranks` ranks: `latency_ms + bytes / gigabytes_per_s / 1e6` milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredLink {
    /// Kind of exchange.
    pub operation: LinkOperation,
    /// Number of ranks that took part, the first of the cluster.
    pub ranks: u32,
    /// Time of the smallest exchange.
    pub latency_ms: f64,
    /// Bytes of one rank's buffer a second, in 1e9.
    pub gigabytes_per_s: f64,
}

/// A kind of exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkOperation {
    /// Each rank of the first half sends its buffer to the rank at the same index in the second half, as the ranks of
    /// neighbouring stages do.
    Send,
    /// Each rank sends a share of its buffer to each other one, as transfers do.
    AllToAll,
}

impl CostProfile {
    /// The measurement of the widest send with sender and receiver in one node.
    pub fn send_inside(&self) -> Option<&MeasuredLink> {
        self.widest_send(|half, node| 2 * half <= node)
    }

    /// The measurement of the widest send with all senders in other nodes than their receivers; each node then has as
    /// many senders as ranks.
    pub fn send_between(&self) -> Option<&MeasuredLink> {
        self.widest_send(u32::is_multiple_of)
    }

    /// Rates of a cluster's links by the measured all-to-all exchanges: transfers are of this kind.
    ///
    /// Of `n` ranks that exchange at `r` bytes of their own buffers a second, each sends `(n - 1) / n` of it; with `g`
    /// ranks per node, a node's links carry `g r (n - g) / n`. A message takes the latency of the widest exchange over
    /// its `n - 1` messages. Nodes of one GPU have no links inside: those between nodes stand for these too.
    ///
    /// None if no exchange was measured, or none between nodes and the cluster has several nodes. Refused with
    /// `argument_invalid` if the rates are beyond the limits.
    pub fn exchange_rates(&self, cluster: &Cluster) -> Result<Option<LinkRates>> {
        let node = self.hardware.gpus_per_node;
        let Some(widest) = self.widest(LinkOperation::AllToAll, |_| true) else { return Ok(None) };
        let crosses = widest.ranks > node;
        if cluster.gpus() > cluster.gpus_per_node() && !crosses {
            return Ok(None);
        }
        let inside = self.widest(LinkOperation::AllToAll, |ranks| ranks <= node).unwrap_or(widest);
        let gpu_rate = inside.gigabytes_per_s * (1.0 - 1.0 / f64::from(inside.ranks));
        // Inside one node nothing crosses, whatever the rate.
        let node_rate = if crosses {
            f64::from(node) * widest.gigabytes_per_s * (1.0 - f64::from(node) / f64::from(widest.ranks))
        } else {
            f64::from(cluster.gpus_per_node()) * gpu_rate
        };
        let message_us = 1e3 * widest.latency_ms / f64::from(widest.ranks - 1);
        LinkRates { gigabytes_per_s: node_rate, gpu_gigabytes_per_s: gpu_rate, message_us }.checked().map(Some)
    }

    /// `is_meant` takes the senders, and the ranks of a node.
    fn widest_send(&self, is_meant: impl Fn(u32, u32) -> bool) -> Option<&MeasuredLink> {
        let node = self.hardware.gpus_per_node;
        self.widest(LinkOperation::Send, |ranks| is_meant(ranks / 2, node))
    }

    /// The exchange of most ranks, among those whose ranks pass `is_meant`.
    fn widest(&self, operation: LinkOperation, is_meant: impl Fn(u32) -> bool) -> Option<&MeasuredLink> {
        let links = self.hardware.links.iter();
        let of_kind = links.filter(|link| link.operation == operation && link.ranks >= 2);
        of_kind.filter(|link| is_meant(link.ranks)).max_by_key(|link| link.ranks)
    }
}

impl CostProfile {
    /// The model whose parameters and hidden states travel; refused with `profile_invalid` if the profile does not state it.
    pub fn travelling_model(&self) -> Result<&ModelShape> {
        Ok(self.model.as_ref().ok_or_else(|| LinkError::ModelUnknown { profile: self.name.clone() })?)
    }

    /// The type of parameters and hidden states; profiles that do not state it were measured in bf16.
    pub fn travelling_dtype(&self) -> Dtype {
        self.dtype.unwrap_or(Dtype::Bfloat16)
    }
}
