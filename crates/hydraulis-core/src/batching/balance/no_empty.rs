//! A sequence for every micro-batch: empty micro-batches take one from a micro-batch with several.
//!
//! Micro-batches come in groups: the slots of a step, or the micro-batches of each replica. A move inside the group
//! leaves the time as it is, because the slot has the sequence's time already, or the replica keeps its total.
//! A single sequence always fits, since every sequence is within the caps.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::batching::balance::micro_batch::MicroBatch;
use crate::batching::balance::workload::Workload;
use crate::units::Millis;

/// The meaning of a group of micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    /// A group has the micro-batches of one slot, replica by replica.
    Slot,
    /// A group has the micro-batches of one replica.
    Replica,
}

impl Group {
    fn replica(self, (group, place): (usize, usize)) -> usize {
        if self == Group::Slot { place } else { group }
    }
}

/// Fills the empty micro-batches; returns false if the sequences do not suffice.
pub(super) fn fill_empty(groups: &mut [Vec<MicroBatch>], of: Group, workload: &Workload) -> bool {
    let places = groups.iter().enumerate().flat_map(|(group, own)| (0..own.len()).map(move |place| (group, place)));
    let empty: Vec<(usize, usize)> =
        places.filter(|&(group, place)| groups[group][place].sequences.is_empty()).collect();
    if empty.is_empty() {
        return true;
    }
    let mut donors = Donors::new(groups, of, workload);
    empty.into_iter().all(|target| {
        let Some((group, place)) = donors.take(target, groups) else { return false };
        let mut ids = std::mem::take(&mut groups[group][place].sequences);
        let moved = ids.pop();
        groups[group][place] = MicroBatch::of(ids, workload);
        groups[target.0][target.1] = MicroBatch::of(moved.into_iter().collect(), workload);
        donors.put_back((group, place), groups);
        true
    })
}

/// The micro-batches with more than one sequence, in the orders in which they give one.
struct Donors<'a> {
    of: Group,
    workload: &'a Workload<'a>,
    /// For each group, its donors in the order of their time.
    by_time: Vec<BTreeSet<(Millis, Reverse<usize>)>>,
    /// All donors in the order of their shortest sequence.
    by_shortest: BTreeSet<(Millis, (usize, usize))>,
    /// The number of sequences of each replica.
    numbers: Vec<usize>,
}

impl<'a> Donors<'a> {
    fn new(groups: &[Vec<MicroBatch>], of: Group, workload: &'a Workload<'a>) -> Donors<'a> {
        let mut donors = Donors {
            of,
            workload,
            by_time: vec![BTreeSet::new(); groups.len()],
            by_shortest: BTreeSet::new(),
            numbers: vec![0; workload.replicas],
        };
        for (group, own) in groups.iter().enumerate() {
            for (place, pack) in own.iter().enumerate() {
                donors.numbers[of.replica((group, place))] += pack.sequences.len();
                donors.put_back((group, place), groups);
            }
        }
        donors
    }

    /// Removes and returns the micro-batch that gives its shortest sequence to `target`: the longest one of the group,
    /// or else the one with the shortest sequence of all.
    fn take(&mut self, target: (usize, usize), groups: &[Vec<MicroBatch>]) -> Option<(usize, usize)> {
        let to = self.of.replica(target);
        let can_give = |&at: &(usize, usize)| {
            let from = self.of.replica(at);
            !self.workload.is_cancelled(1)
                && (!self.workload.rules.equal_sequences || from == to || self.numbers[from] > self.numbers[to])
        };
        let mut inside = self.by_time[target.0].iter().rev().map(|&(_, Reverse(place))| (target.0, place));
        let at = inside.find(can_give).or_else(|| {
            let mut all = self.by_shortest.iter().map(|&(_, at)| at);
            all.find(can_give)
        })?;
        self.by_time[at.0].remove(&(groups[at.0][at.1].ms, Reverse(at.1)));
        self.by_shortest.remove(&(self.shortest(at, groups), at));
        self.numbers[self.of.replica(at)] -= 1;
        self.numbers[to] += 1;
        Some(at)
    }

    /// Lists a micro-batch, if it has a sequence to give.
    fn put_back(&mut self, at: (usize, usize), groups: &[Vec<MicroBatch>]) {
        let pack = &groups[at.0][at.1];
        if pack.sequences.len() > 1 {
            self.by_time[at.0].insert((pack.ms, Reverse(at.1)));
            self.by_shortest.insert((self.shortest(at, groups), at));
        }
    }

    fn shortest(&self, at: (usize, usize), groups: &[Vec<MicroBatch>]) -> Millis {
        groups[at.0][at.1].sequences.last().map(|&id| self.workload.ms[id]).unwrap_or_default()
    }
}
