//! Which ranks share a node.

use crate::layout::Holding;

/// Nodes of equally many ranks, in rank order.
#[derive(Clone, Copy)]
pub(super) struct Nodes {
    gpus_per_node: u32,
}

impl Nodes {
    pub(super) fn new(gpus_per_node: u32) -> Nodes {
        Nodes { gpus_per_node: gpus_per_node.max(1) }
    }

    pub(super) fn are_near(self, one: &Holding, other: &Holding) -> bool {
        one.rank / self.gpus_per_node == other.rank / self.gpus_per_node
    }

    /// Those in the node of `place`.
    pub(super) fn near<'a>(self, holdings: &[&'a Holding], place: &Holding) -> Vec<&'a Holding> {
        holdings.iter().filter(|one| self.are_near(one, place)).copied().collect()
    }

    /// Holdings in rank order, node by node.
    pub(super) fn groups<'s, 'a>(self, holdings: &'s [&'a Holding]) -> impl Iterator<Item = &'s [&'a Holding]> {
        holdings.chunk_by(move |one, other| self.are_near(one, other))
    }
}
