//! Packs of equal replicas under one strategy: balanced, or first-fit-decreasing as data loaders pack.
//!
//! Balanced packs are a multiple of the replicas: the best current use of a static strategy.
//!
//! First-fit-decreasing packs are nearly full, and their number is not fitted to the replicas: 5 packs on 4 replicas take
//! as long as 8. Sorted by time, micro-batches that run at the same time take about the same time; this is most of the gain
//! open to such a loader.

use hydraulis_core::Millis;
use hydraulis_core::batch::Batch;

use crate::baseline::decision::longest_first;
use crate::baseline::packs::{balanced, first_fit, in_turn, sequences_ms, slowest_first};
use crate::baseline::{EqualReplicas, Work};

/// Multiples tried above the smallest that fits. More packs cost more in a replica without a pipeline and reduce the
/// bubble of a pipeline; the simulated time decides.
const MORE: usize = 8;

/// Chooses the multiple of least simulated time; every replica takes the same number of packs.
pub fn static_balanced(batch: &Batch, replicas: &EqualReplicas) -> Work {
    let (ids, count) = (longest_first(batch), replicas.count());
    let fewest = first_fit(&ids, batch, replicas.cost.cap()).len().div_ceil(count);
    // With one pack for each sequence all packs fit, so some multiple up to that number fits.
    let most = ids.len().div_ceil(count);
    let fitting = (fewest..=most).filter_map(|each| {
        let packs = balanced(&ids, batch, replicas.cost, each * count)?;
        Some(by_time(packs, batch, replicas, each))
    });
    let timed = fitting.take(MORE + 1).map(|work| (replicas.time(batch, &work), work));
    timed.min_by_key(|(ms, _)| *ms).map(|(_, work)| work).unwrap_or_default()
}

/// Assigns the slowest packs first, each to the replica of least time that has fewer than `each` packs.
fn by_time(packs: Vec<Vec<usize>>, batch: &Batch, replicas: &EqualReplicas, each: usize) -> Work {
    let mut work: Work = vec![Vec::new(); replicas.count()];
    let mut loads = vec![Millis::ZERO; replicas.count()];
    for pack in slowest_first(packs, batch, replicas.cost) {
        let open = (0..work.len()).filter(|&replica| work[replica].len() < each);
        if let Some(replica) = open.min_by_key(|&replica| (loads[replica], replica)) {
            loads[replica] += sequences_ms(&pack, batch, replicas.cost);
            work[replica].push(pack);
        }
    }
    work
}

/// Assigns packs in turn, in the order in which they were opened.
pub fn static_first_fit(batch: &Batch, replicas: &EqualReplicas) -> Work {
    in_turn(first_fit(&longest_first(batch), batch, replicas.cost.cap()), replicas.count())
}

/// Assigns packs in turn, the slowest first.
pub fn static_sorted(batch: &Batch, replicas: &EqualReplicas) -> Work {
    let packs = first_fit(&longest_first(batch), batch, replicas.cost.cap());
    in_turn(slowest_first(packs, batch, replicas.cost), replicas.count())
}
