//! The ranks there are, and how they are grouped in nodes.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// A cluster of equal GPUs in equal nodes; a rank is a GPU, numbered node by node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    gpus: u32,
    gpus_per_node: u32,
}

impl Cluster {
    /// A cluster of `gpus` in nodes of `gpus_per_node`; part of one node is a cluster too.
    pub fn new(gpus: u32, gpus_per_node: u32) -> Result<Cluster> {
        let whole_nodes = gpus_per_node > 0 && (gpus <= gpus_per_node || gpus % gpus_per_node == 0);
        if gpus == 0 || !whole_nodes {
            return Err(Error::ClusterShape { gpus, gpus_per_node });
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
        for (gpus, per_node) in [(0, 8), (8, 0), (12, 8)] {
            assert_eq!(Cluster::new(gpus, per_node).unwrap_err().code(), "cluster_shape");
        }
    }
}
