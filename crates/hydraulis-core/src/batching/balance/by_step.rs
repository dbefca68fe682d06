//! The balance for one barrier per step: the totals of the replicas should be equal.
//!
//! Each sequence, longest first, goes to the replica of least time (Graham 1969). On long-tailed lengths with tens of
//! sequences per replica, the slowest replica is within 0.02 % of the mean. Each replica then packs its sequences by
//! best-fit decreasing (Johnson 1973: at most 11/9 of the fewest micro-batches, plus one). Where the result has more
//! micro-batches than the tokens require, the sequences are packed before they are assigned, unless that balance
//! takes longer.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::batching::balance::by_packs;
use crate::batching::balance::fullest::packed;
use crate::batching::balance::micro_batch::MicroBatch;
use crate::batching::balance::no_empty::{Group, fill_empty};
use crate::batching::balance::workload::Workload;
use crate::units::Millis;

/// The micro-batches of each replica; `None` where a replica has none and the options do not permit it.
pub(super) fn replicas(workload: &Workload) -> Option<Vec<Vec<MicroBatch>>> {
    let mut replicas = assigned(workload);
    if !workload.rules.allow_empty {
        for own in replicas.iter_mut().filter(|own| own.is_empty()) {
            own.push(MicroBatch::default());
        }
        if !fill_empty(&mut replicas, Group::Replica, workload) {
            return None;
        }
    }
    Some(replicas)
}

fn assigned(workload: &Workload) -> Vec<Vec<MicroBatch>> {
    let by_time = by_time(workload);
    let slots = workload.least_slots();
    if number(&by_time) <= slots * workload.replicas {
        return by_time;
    }
    let is_better = |packed_first: &Vec<Vec<MicroBatch>>| {
        number(packed_first) < number(&by_time)
            && longest_total(packed_first) <= longest_total(&by_time) * (1.0 + workload.rules.budget.longer)
    };
    by_packs::replicas(workload, slots).filter(is_better).unwrap_or(by_time)
}

/// The total time of the slowest replica.
pub(super) fn longest_total(replicas: &[Vec<MicroBatch>]) -> Millis {
    let total = |replica: &Vec<MicroBatch>| replica.iter().map(|micro_batch| micro_batch.ms).sum();
    replicas.iter().map(total).max().unwrap_or_default()
}

fn number(replicas: &[Vec<MicroBatch>]) -> usize {
    replicas.iter().map(Vec::len).sum()
}

/// Assigns each sequence to the replica of least time.
fn by_time(workload: &Workload) -> Vec<Vec<MicroBatch>> {
    let mut by_time: BinaryHeap<Reverse<(Millis, usize)>> =
        (0..workload.replicas).map(|replica| Reverse((Millis::ZERO, replica))).collect();
    let mut assigned = vec![Vec::new(); workload.replicas];
    for &id in &workload.longest_first {
        if let Some(mut quickest) = by_time.peek_mut() {
            let Reverse((time, replica)) = *quickest;
            assigned[replica].push(id);
            *quickest = Reverse((time + workload.ms[id], replica));
        }
    }
    assigned.iter().map(|ids| packed(workload, ids)).collect()
}
