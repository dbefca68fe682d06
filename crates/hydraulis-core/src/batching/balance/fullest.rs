//! Best fit: each sequence goes into the fullest micro-batch that has room and time for it, in `O(log n)` per
//! sequence where room is the only limit.

use std::collections::BTreeSet;

use crate::batching::balance::micro_batch::MicroBatch;
use crate::batching::balance::workload::Workload;
use crate::units::{Millis, Tokens};

/// Micro-batches filled by room, none of which takes longer than a limit.
#[derive(Debug)]
pub(super) struct Fullest<'a> {
    workload: &'a Workload<'a>,
    limit: Millis,
    micro_batches: Vec<MicroBatch>,
    by_room: BTreeSet<(Tokens, usize)>,
}

impl<'a> Fullest<'a> {
    /// `count` empty micro-batches, each of which may take at most `limit`.
    pub(super) fn new(workload: &'a Workload<'a>, limit: Millis, count: usize) -> Fullest<'a> {
        Fullest {
            workload,
            limit,
            micro_batches: vec![MicroBatch::default(); count],
            by_room: (0..count).map(|at| (workload.cap, at)).collect(),
        }
    }

    /// Puts a sequence where it leaves the least room; returns false if it fits nowhere.
    pub(super) fn put(&mut self, id: usize) -> bool {
        let fitting = self.by_room.range((self.workload.tokens[id], 0)..);
        let mut steps = 0;
        let in_time = |&(_, at): &(Tokens, usize)| {
            steps += 1;
            self.micro_batches[at].ms + self.workload.ms[id] <= self.limit
        };
        let found = fitting.copied().find(in_time);
        if self.workload.is_cancelled(steps) {
            return false;
        }
        let Some((room, at)) = found else { return false };
        self.by_room.remove(&(room, at));
        self.micro_batches[at].take(id, self.workload);
        // A micro-batch without time for the shortest sequence is closed.
        if self.micro_batches[at].ms + self.workload.shortest_ms() <= self.limit {
            self.by_room.insert((self.micro_batches[at].room(self.workload), at));
        }
        true
    }

    /// The length of the longest sequence that has room.
    pub(super) fn most_room(&self) -> Tokens {
        self.by_room.last().map(|&(room, _)| room).unwrap_or_default()
    }

    /// Opens one more empty micro-batch.
    pub(super) fn open(&mut self) {
        self.by_room.insert((self.workload.cap, self.micro_batches.len()));
        self.micro_batches.push(MicroBatch::default());
    }

    /// The filled micro-batches.
    pub(super) fn finish(self) -> Vec<MicroBatch> {
        self.micro_batches
    }
}

/// The micro-batches that best fit opens for these sequences, which come longest first.
pub(super) fn packed(workload: &Workload, ids: &[usize]) -> Vec<MicroBatch> {
    let mut fullest = Fullest::new(workload, Millis::INFINITY, 0);
    for &id in ids {
        if !fullest.put(id) {
            fullest.open();
            fullest.put(id);
        }
    }
    fullest.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::batching::balance::SequenceCost;
    use crate::batching::balance::options::Rules;

    #[test]
    fn the_least_room_that_suffices_is_chosen() {
        let batch = Batch::new(&[6, 5, 3, 2, 1], None).unwrap();
        let workload = Workload::of_batch(&batch, SequenceCost::new(0.0, 1.0).unwrap(), Tokens(8), Rules::free(2));
        let mut fullest = Fullest::new(&workload, Millis(7.0), 1);
        assert!(fullest.put(0) && !fullest.put(1));
        fullest.open();
        assert!(fullest.put(1));
        // Sequence 2 has room in the second micro-batch, which has no time for it. Sequence 3 has time in the second
        // alone.
        assert!(!fullest.put(2));
        assert!(fullest.put(3) && fullest.put(4));
        let sequences: Vec<_> = fullest.finish().into_iter().map(|micro_batch| micro_batch.sequences).collect();
        assert_eq!(sequences, [vec![0, 4], vec![1, 3]]);
    }
}
