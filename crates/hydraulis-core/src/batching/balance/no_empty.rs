//! A sequence for every micro-batch: empty micro-batches take one from a micro-batch with several.
//!
//! Micro-batches come in groups: the slots of a step, or the micro-batches of each replica. A move inside the group
//! leaves the time as it is, because the slot has the sequence's time already, or the replica keeps its total.
//! A single sequence always fits, since every sequence is within the caps.

use crate::batching::balance::micro_batch::MicroBatch;
use crate::batching::balance::workload::Workload;

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
    empty.into_iter().all(|target| {
        let Some((group, place)) = donor(groups, target, of, workload) else { return false };
        let mut ids = std::mem::take(&mut groups[group][place].sequences);
        let moved = ids.pop();
        groups[group][place] = MicroBatch::of(ids, workload);
        groups[target.0][target.1] = MicroBatch::of(moved.into_iter().collect(), workload);
        true
    })
}

/// The micro-batch that gives its shortest sequence: the longest one of the group, or else the one with the shortest
/// sequence of all.
fn donor(groups: &[Vec<MicroBatch>], target: (usize, usize), of: Group, workload: &Workload) -> Option<(usize, usize)> {
    let number = |replica: usize| -> usize {
        let own = |(group, packs): (usize, &Vec<MicroBatch>)| -> usize {
            let counted = packs.iter().enumerate().filter(|&(place, _)| of.replica((group, place)) == replica);
            counted.map(|(_, pack)| pack.sequences.len()).sum()
        };
        groups.iter().enumerate().map(own).sum()
    };
    let to = of.replica(target);
    let can_give = |at: (usize, usize)| {
        let from = of.replica(at);
        groups[at.0][at.1].sequences.len() > 1
            && (!workload.rules.equal_sequences || from == to || number(from) > number(to))
    };
    let inside = (0..groups[target.0].len()).map(|place| (target.0, place)).filter(|&at| can_give(at));
    let shortest = |(group, place): (usize, usize)| {
        groups[group][place].sequences.last().map(|&id| workload.ms[id]).unwrap_or_default()
    };
    let longest_inside = inside.max_by_key(|&(group, place)| (groups[group][place].ms, std::cmp::Reverse(place)));
    longest_inside.or_else(|| {
        let all = groups.iter().enumerate().flat_map(|(group, own)| (0..own.len()).map(move |place| (group, place)));
        all.filter(|&at| can_give(at)).min_by_key(|&at| (shortest(at), at))
    })
}
