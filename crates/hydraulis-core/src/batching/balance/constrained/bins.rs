//! A fixed number of micro-batches for each replica; each sequence goes to the one that ends first.

use std::collections::BTreeSet;

use crate::batching::balance::micro_batch::MicroBatch;
use crate::batching::balance::workload::Workload;
use crate::units::Millis;

/// Micro-batches in the order of the time at which they end.
#[derive(Debug)]
struct Bins<'a> {
    workload: &'a Workload<'a>,
    replicas: Vec<Vec<MicroBatch>>,
    by_time: BTreeSet<(Millis, usize, usize)>,
    /// The least time of a unit of work.
    least_pace: f64,
}

/// `number` micro-batches for each replica with these sequences, in their order; `None` where one finds no room.
pub(super) fn filled(workload: &Workload, ids: &[usize], number: usize) -> Option<Vec<Vec<MicroBatch>>> {
    let rules = &workload.rules;
    let places = (0..workload.replicas).flat_map(|replica| (0..number).map(move |slot| (replica, slot)));
    let mut bins = Bins {
        workload,
        replicas: vec![vec![MicroBatch::default(); number]; workload.replicas],
        by_time: places.map(|(replica, slot)| (workload.time(Millis::ZERO, 1, replica), replica, slot)).collect(),
        least_pace: rules.paces.iter().copied().fold(f64::INFINITY, f64::min),
    };
    let are_placed = ids.iter().all(|&id| bins.put(id));
    are_placed.then_some(bins.replicas)
}

impl Bins<'_> {
    /// Puts a sequence where it ends first; returns false if no micro-batch has room.
    fn put(&mut self, id: usize) -> bool {
        let Some((end, key)) = self.first_to_end(id) else { return false };
        let (_, replica, slot) = key;
        self.by_time.remove(&key);
        self.by_time.insert((end, replica, slot));
        self.replicas[replica][slot].take(id, self.workload);
        true
    }

    fn first_to_end(&self, id: usize) -> Option<(Millis, (Millis, usize, usize))> {
        let ms = self.workload.ms[id];
        let mut best: Option<(Millis, (Millis, usize, usize))> = None;
        let mut steps = 0;
        for &(time, replica, slot) in &self.by_time {
            if best.is_some_and(|(end, _)| time + ms * self.least_pace >= end) {
                break;
            }
            steps += 1;
            let micro_batch = &self.replicas[replica][slot];
            if micro_batch.fits(id, self.workload) {
                let end = self.workload.time(micro_batch.ms + ms, 1, replica);
                if best.is_none_or(|(least, _)| end < least) {
                    best = Some((end, (time, replica, slot)));
                }
            }
        }
        if self.workload.is_cancelled(steps) { None } else { best }
    }
}
