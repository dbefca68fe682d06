//! A cluster's ranks and their nodes.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Largest number of GPUs, ten times the largest training cluster of 2026. The limit refuses a typing error before an
/// allocation fails.
pub(crate) const MAX_GPUS: u32 = 1 << 20;

/// A cluster of equal GPUs in equal nodes. Each GPU is one rank; ranks are numbered node by node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "ClusterFields")]
pub struct Cluster {
    gpus: u32,
    gpus_per_node: u32,
}

/// The fields of a cluster in a document, before validation.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterFields {
    gpus: u32,
    gpus_per_node: u32,
}

impl TryFrom<ClusterFields> for Cluster {
    type Error = Error;
    fn try_from(fields: ClusterFields) -> Result<Cluster> {
        Cluster::new(fields.gpus, fields.gpus_per_node)
    }
}

impl Cluster {
    /// A cluster of `gpus` GPUs in nodes of `gpus_per_node`. A part of one node is a valid cluster.
    pub fn new(gpus: u32, gpus_per_node: u32) -> Result<Cluster> {
        let whole_nodes =
            gpus_per_node > 0 && gpus <= MAX_GPUS && (gpus <= gpus_per_node || gpus.is_multiple_of(gpus_per_node));
        if gpus == 0 || !whole_nodes {
            return Err(Error::ClusterShape { gpus: gpus.into(), gpus_per_node: gpus_per_node.into() });
        }
        Ok(Cluster { gpus, gpus_per_node })
    }

    /// Number of ranks.
    pub fn gpus(&self) -> u32 {
        self.gpus
    }

    /// Number of ranks in a node.
    pub fn gpus_per_node(&self) -> u32 {
        self.gpus_per_node
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_nodes_and_parts_of_one_node_are_clusters() {
        assert!(Cluster::new(64, 8).is_ok());
        assert!(Cluster::new(4, 8).is_ok());
        for (gpus, per_node) in [(0, 8), (8, 0), (12, 8), (MAX_GPUS + 8, 8)] {
            assert_eq!(Cluster::new(gpus, per_node).unwrap_err().code(), "argument_invalid");
        }
    }
}
