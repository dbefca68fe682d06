//! First-fit-decreasing packs, sorted by time and then assigned in turn.
//!
//! Micro-batches that run at the same time then take about the same time; this is most of the gain open to such a
//! loader.

use hydraulis_core::batch::Batch;

use crate::baseline::decision::longest_first;
use crate::baseline::packs::{first_fit, in_turn, slowest_first};
use crate::baseline::{EqualReplicas, Work};

/// Assigns packs in turn, the slowest first.
pub fn assign(batch: &Batch, replicas: &EqualReplicas) -> Work {
    let packs = first_fit(&longest_first(batch), batch, replicas.cost.cap());
    in_turn(slowest_first(packs, batch, replicas.cost), replicas.count())
}
