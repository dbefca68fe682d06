//! One barrier a step: the totals of the replicas are to be equal.
//!
//! Each sequence, longest first, goes to the replica of least time (Graham 1969); on long-tailed lengths with tens
//! of sequences a replica the slowest is within 0.02 % of the mean. Each replica then packs its own by best-fit
//! decreasing (Johnson 1973: at most 11/9 of the fewest micro-batches, and one). Where that takes more micro-batches than
//! the tokens ask for, they are packed before they are dealt, unless that takes longer.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::batching::balance::by_packs;
use crate::batching::balance::fullest::packed;
use crate::batching::balance::micro_batch::MicroBatch;
use crate::batching::balance::workload::Workload;
use crate::units::Millis;

/// Fewer micro-batches may take this much longer: a balance by time alone is as far from equal on short batches.
const LONGER: f64 = 1e-3;

/// The micro-batches of each replica.
pub(super) fn replicas(workload: &Workload) -> Vec<Vec<MicroBatch>> {
    let by_time = by_time(workload);
    let slots = workload.least_slots();
    if number(&by_time) <= slots * workload.replicas {
        return by_time;
    }
    let is_better = |packed_first: &Vec<Vec<MicroBatch>>| {
        number(packed_first) < number(&by_time)
            && longest_total(packed_first) <= longest_total(&by_time) * (1.0 + LONGER)
    };
    by_packs::replicas(workload, slots).filter(is_better).unwrap_or(by_time)
}

/// When the slowest replica ends.
pub(super) fn longest_total(replicas: &[Vec<MicroBatch>]) -> Millis {
    let total = |replica: &Vec<MicroBatch>| replica.iter().map(|micro_batch| micro_batch.ms).sum();
    replicas.iter().map(total).max().unwrap_or_default()
}

fn number(replicas: &[Vec<MicroBatch>]) -> usize {
    replicas.iter().map(Vec::len).sum()
}

/// Each sequence onto the replica of least time.
fn by_time(workload: &Workload) -> Vec<Vec<MicroBatch>> {
    let mut by_time: BinaryHeap<Reverse<(Millis, usize)>> =
        (0..workload.replicas).map(|replica| Reverse((Millis::ZERO, replica))).collect();
    let mut dealt = vec![Vec::new(); workload.replicas];
    for &id in &workload.longest_first {
        if let Some(mut quickest) = by_time.peek_mut() {
            let Reverse((time, replica)) = *quickest;
            dealt[replica].push(id);
            *quickest = Reverse((time + workload.ms[id], replica));
        }
    }
    dealt.iter().map(|ids| packed(workload, ids)).collect()
}
