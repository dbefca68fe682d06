//! First-fit-decreasing packs, assigned in turn: the method of data loaders that pack.
//!
//! Packs are nearly full, and their number is not fitted to the replicas: 5 packs on 4 replicas take as long as 8.

use hydraulis_core::batch::Batch;

use crate::baseline::decision::longest_first;
use crate::baseline::packs::{first_fit, in_turn};
use crate::baseline::{EqualReplicas, Work};

/// Assigns packs in turn, in the order in which they were opened.
pub fn assign(batch: &Batch, replicas: &EqualReplicas) -> Work {
    in_turn(first_fit(&longest_first(batch), batch, replicas.cost.cap()), replicas.count())
}
