//! Equal numbers of sequences for replicas of unequal speed: in each round, every replica takes one.
//!
//! A round has as many sequences as there are replicas, next in order. Its longest sequence goes to the replica with
//! the least time so far, and so on. The replicas then have similar sequences, and each packs its own.

use crate::batching::balance::constrained::packed;
use crate::batching::balance::micro_batch::MicroBatch;
use crate::batching::balance::workload::Workload;
use crate::units::Millis;

/// `number` micro-batches for each replica; `None` where a replica's sequences find no room.
pub(super) fn in_rounds(workload: &Workload, ids: &[usize], number: usize) -> Option<Vec<Vec<MicroBatch>>> {
    let mut assigned: Vec<Vec<usize>> = vec![Vec::new(); workload.replicas];
    let mut work = vec![Millis::ZERO; workload.replicas];
    for round in ids.chunks(workload.replicas) {
        let mut round = round.to_vec();
        round.sort_unstable_by_key(|&id| workload.order(id));
        let mut first_to_end: Vec<usize> = (0..workload.replicas).collect();
        first_to_end.sort_by_key(|&replica| workload.time(work[replica], 0, replica));
        for (id, replica) in round.into_iter().zip(first_to_end) {
            assigned[replica].push(id);
            work[replica] += workload.ms[id];
        }
    }
    assigned.iter().map(|own| by_time(workload, own, number).or_else(|| best_fit(workload, own, number))).collect()
}

/// `number` micro-batches of one replica, each sequence in the one of least time that has room.
fn by_time(workload: &Workload, ids: &[usize], number: usize) -> Option<Vec<MicroBatch>> {
    let mut packs = vec![MicroBatch::default(); number];
    for &id in ids {
        let fitting = packs.iter_mut().filter(|pack| pack.fits(id, workload));
        fitting.min_by_key(|pack| pack.ms)?.take(id, workload);
    }
    Some(packs)
}

fn best_fit(workload: &Workload, ids: &[usize], number: usize) -> Option<Vec<MicroBatch>> {
    let mut packs = packed(workload, ids);
    let fits = packs.len() <= number;
    packs.resize_with(number, MicroBatch::default);
    fits.then_some(packs)
}
