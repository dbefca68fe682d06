//! First-fit-decreasing packs, dealt in turn: what data loaders that pack do.
//!
//! Packs are nearly full of tokens, and their number is whatever it is: 5 packs on 4 replicas take as long as 8.

use hydraulis_core::batch::Batch;

use crate::baseline::decision::longest_first;
use crate::baseline::packs::{dealt_in_turn, first_fit};
use crate::baseline::{EqualReplicas, Work};

/// Packs in the order in which they were opened, dealt in turn.
pub fn deal(batch: &Batch, replicas: &EqualReplicas) -> Work {
    dealt_in_turn(first_fit(&longest_first(batch), batch, replicas.cost.cap()), replicas.count())
}
