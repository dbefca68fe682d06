//! The assignment of each sequence to the micro-batch of least time that has room for it.
//!
//! Sequences come longest first, so a micro-batch with too little room for one sequence waits until the sequences are
//! short enough. From then on it fits every sequence until it takes one: `O(log n)` per sequence.

use std::collections::BTreeSet;

use crate::batching::balance::micro_batch::MicroBatch;
use crate::batching::balance::workload::Workload;
use crate::units::{Millis, Tokens};

/// A fixed number of micro-batches, filled by time.
#[derive(Debug)]
pub(super) struct Quickest<'a> {
    workload: &'a Workload<'a>,
    micro_batches: Vec<MicroBatch>,
    /// The micro-batches with room for the last sequence, and so for the next one.
    fitting: BTreeSet<(Millis, usize)>,
    /// The micro-batches with less room, in ascending order of room.
    waiting: BTreeSet<(Tokens, usize)>,
}

impl<'a> Quickest<'a> {
    /// `count` empty micro-batches.
    pub(super) fn new(workload: &'a Workload<'a>, count: usize) -> Quickest<'a> {
        Quickest {
            workload,
            micro_batches: vec![MicroBatch::default(); count],
            fitting: (0..count).map(|at| (Millis::ZERO, at)).collect(),
            waiting: BTreeSet::new(),
        }
    }

    /// Puts a sequence, no longer than those before it, where it ends first; returns false if no micro-batch has
    /// room.
    pub(super) fn put(&mut self, id: usize) -> bool {
        let tokens = self.workload.tokens[id];
        while self.waiting.last().is_some_and(|&(room, _)| room >= tokens)
            && let Some((_, at)) = self.waiting.pop_last()
        {
            self.fitting.insert((self.micro_batches[at].ms, at));
        }
        let Some((_, at)) = self.fitting.pop_first() else { return false };
        self.micro_batches[at].take(id, self.workload);
        let room = self.micro_batches[at].room(self.workload);
        if room >= tokens {
            self.fitting.insert((self.micro_batches[at].ms, at));
        } else {
            self.waiting.insert((room, at));
        }
        true
    }

    /// The length of the longest sequence that finds room, after `put` has refused a sequence.
    pub(super) fn most_room(&self) -> Tokens {
        self.waiting.last().map(|&(room, _)| room).unwrap_or_default()
    }

    /// The filled micro-batches.
    pub(super) fn finish(self) -> Vec<MicroBatch> {
        self.micro_batches
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::batching::balance::SequenceCost;
    use crate::batching::balance::options::Rules;

    #[test]
    fn the_least_time_with_room_is_chosen() {
        let batch = Batch::new(&[7, 6, 5, 2, 1, 1], None).unwrap();
        let workload = Workload::of_batch(&batch, SequenceCost::new(0.0, 1.0).unwrap(), Tokens(8), Rules::free(2));
        let mut quickest = Quickest::new(&workload, 2);
        assert!(quickest.put(0) && quickest.put(1));
        assert!(!quickest.put(2));
        assert_eq!(quickest.most_room(), Tokens(2));
        assert!(quickest.put(3) && quickest.put(4));
        assert!(!quickest.put(5));
        assert_eq!(quickest.most_room(), Tokens(0));
        let sequences: Vec<_> = quickest.finish().into_iter().map(|micro_batch| micro_batch.sequences).collect();
        assert_eq!(sequences, [vec![0, 4], vec![1, 3]]);
    }
}
