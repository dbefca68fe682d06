//! One heap: each sequence, longest first, goes to the replica of least time (Graham 1969).
//!
//! It is the shortest program that balances well, and hence the baseline that a scheduler has to beat. Hydraulis's own
//! packer then packs each replica's sequences, so that the comparison is between assignments.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hydraulis_core::Millis;
use hydraulis_core::batch::Batch;
use hydraulis_core::construct::pack::Packer;
use hydraulis_core::spec::PackingBudget;

use crate::baseline::decision::longest_first;
use crate::baseline::{EqualReplicas, Work};

/// Assigns sequences by their time alone, then packs them.
pub fn assign(batch: &Batch, replicas: &EqualReplicas) -> Work {
    let mut by_time: BinaryHeap<Reverse<(Millis, usize)>> =
        (0..replicas.count()).map(|replica| Reverse((Millis::ZERO, replica))).collect();
    let mut assigned = vec![Vec::new(); replicas.count()];
    for id in longest_first(batch) {
        if let Some(mut earliest) = by_time.peek_mut() {
            let Reverse((time, replica)) = *earliest;
            assigned[replica].push(id);
            *earliest = Reverse((time + replicas.cost.sequence_ms(batch.tokens()[id]), replica));
        }
    }
    let mut packer = Packer::new(&replicas.capacity, batch, PackingBudget::ONLINE);
    assigned.iter().map(|ids| packer.pack(ids).micro_batches).collect()
}
