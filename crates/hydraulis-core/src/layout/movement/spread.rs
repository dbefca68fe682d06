//! Copies to whoever needs them.

use crate::error::{LayoutError, Result};
use crate::layout::movement::sweep::sweep;
use crate::layout::movement::{Loads, Moves};
use crate::layout::{Holding, Move};

/// What brings every target its elements from sources that hold copies of them, with the least that can be sent: each
/// element goes once to each rank that has none itself, from its own node where somebody there has it.
///
/// A target that its rank holds elsewhere is a move from that rank to itself. Refused with `element_unheld` where a target
/// has elements that no source holds.
pub fn spread(sources: &[Holding], targets: &[Holding], gpus_per_node: u32) -> Result<Vec<Move>> {
    let node = |rank: u32| rank / gpus_per_node.max(1);
    let (mut moves, mut loads) = (Moves::default(), Loads::default());
    sweep(sources, targets, |interval, from, to| {
        for target in to {
            if from.is_empty() {
                return Err(LayoutError::ElementUnheld { rank: target.rank, element: interval.start });
            }
            if let Some(own) = from.iter().find(|one| one.rank == target.rank) {
                moves.push(Move::of(&interval, own, target));
                continue;
            }
            let is_near = |one: &&&Holding| node(one.rank) == node(target.rank);
            let near: Vec<&Holding> = from.iter().filter(is_near).copied().collect();
            let mut senders = if near.is_empty() { from.to_vec() } else { near };
            senders.dedup_by_key(|one| one.rank);
            let ranks: Vec<u32> = senders.iter().map(|one| one.rank).collect();
            for (part, sender) in loads.share(&interval, &ranks).into_iter().zip(senders) {
                if !part.is_empty() {
                    moves.push(Move::of(&part, sender, target));
                }
            }
        }
        Ok(())
    })?;
    Ok(moves.into_vec())
}
