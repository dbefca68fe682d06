//! First-fit-decreasing packs, sorted by time before they are dealt in turn.
//!
//! Micro-batches that run at the same time then take about the same time; most of what such a loader can gain.

use hydraulis_core::batch::Batch;

use crate::baseline::decision::longest_first;
use crate::baseline::packs::{dealt_in_turn, first_fit, slowest_first};
use crate::baseline::{EqualReplicas, Work};

/// Packs of most time first, dealt in turn.
pub fn deal(batch: &Batch, replicas: &EqualReplicas) -> Work {
    let packs = first_fit(&longest_first(batch), batch, replicas.cost.cap());
    dealt_in_turn(slowest_first(packs, batch, replicas.cost), replicas.count())
}
