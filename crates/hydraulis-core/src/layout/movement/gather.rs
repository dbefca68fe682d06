//! Parts of a sum to where it is kept.

use std::convert::Infallible;

use crate::layout::movement::sweep::sweep;
use crate::layout::movement::{Loads, Moves};
use crate::layout::{Holding, Move};

/// A sum in two steps: first `inside` each node, where the receivers hold a part themselves and add what comes to it in
/// place, then `between` nodes and to the targets in their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeGather {
    /// Between ranks of one node.
    pub inside: Vec<Move>,
    /// To the targets.
    pub between: Vec<Move>,
}

/// What brings every target the parts of all sources, its own among them: to be added in the order of the list.
pub fn gather(sources: &[Holding], targets: &[Holding]) -> Vec<Move> {
    let mut moves = Moves::default();
    let Ok(()) = sweep(sources, targets, |interval, from, to| {
        for target in to {
            for source in from {
                moves.push(Move::of(&interval, source, target));
            }
        }
        Ok::<(), Infallible>(())
    });
    moves.into_vec()
}

/// The same sums with the parts of each node added up inside it first, where more than one of its ranks has any and the
/// target is in another node. A node's ranks share that work out, each a piece of every interval, as in a reduce-scatter.
///
/// Sums are added in the order of nodes, inside one in the order of ranks: the same in every run, and another order than
/// [`gather`]'s. Parts are overwritten by their node's sum, so targets in the same node as such parts take these sums
/// too. Each source holds an element once.
pub fn gather_by_node(sources: &[Holding], targets: &[Holding], gpus_per_node: u32) -> NodeGather {
    let node = |rank: u32| rank / gpus_per_node.max(1);
    let (mut inside, mut between, mut loads) = (Moves::default(), Moves::default(), Loads::default());
    let Ok(()) = sweep(sources, targets, |interval, from, to| {
        for members in from.chunk_by(|one, other| node(one.rank) == node(other.rank)) {
            let is_near = |target: &&Holding| node(target.rank) == node(members[0].rank);
            // Where every target is near, each part goes straight to it.
            if members.len() == 1 || to.iter().all(is_near) {
                for target in to {
                    for source in members {
                        between.push(Move::of(&interval, source, target));
                    }
                }
                continue;
            }
            let ranks: Vec<u32> = members.iter().map(|one| one.rank).collect();
            for (piece, adder) in loads.share(&interval, &ranks).into_iter().zip(members) {
                if piece.is_empty() {
                    continue;
                }
                for source in members.iter().filter(|one| one.rank != adder.rank) {
                    inside.push(Move::of(&piece, source, adder));
                }
                for target in to {
                    between.push(Move::of(&piece, adder, target));
                }
            }
        }
        Ok::<(), Infallible>(())
    });
    NodeGather { inside: inside.into_vec(), between: between.into_vec() }
}
