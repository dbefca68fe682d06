//! Parts of a sum to where it is kept.

use std::convert::Infallible;

use crate::layout::movement::Moves;
use crate::layout::movement::sweep::sweep;
use crate::layout::{Holding, Move};

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
