//! One heap: each sequence, longest first, to the replica of least time (Graham 1969).
//!
//! The fewest lines that balance well, hence what a scheduler has to beat. Each replica's sequences are then
//! packed by Hydraulis's own packer, so that what is compared is how sequences are dealt.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hydraulis_core::Millis;
use hydraulis_core::batch::Batch;
use hydraulis_core::construct::pack::Packer;
use hydraulis_core::spec::PackingBudget;

use crate::baseline::decision::longest_first;
use crate::baseline::{EqualReplicas, Work};

/// Deals by the time of sequences alone, then packs.
pub fn deal(batch: &Batch, replicas: &EqualReplicas) -> Work {
    let mut by_time: BinaryHeap<Reverse<(Millis, usize)>> =
        (0..replicas.count()).map(|replica| Reverse((Millis::ZERO, replica))).collect();
    let mut dealt = vec![Vec::new(); replicas.count()];
    for id in longest_first(batch) {
        if let Some(mut earliest) = by_time.peek_mut() {
            let Reverse((time, replica)) = *earliest;
            dealt[replica].push(id);
            *earliest = Reverse((time + replicas.cost.sequence_ms(batch.tokens()[id]), replica));
        }
    }
    let mut packer = Packer::new(&replicas.capacity, batch, PackingBudget::ONLINE);
    dealt.iter().map(|ids| packer.pack(ids).micro_batches).collect()
}
