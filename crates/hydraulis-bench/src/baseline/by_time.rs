//! Assigns sequences by their time alone; Hydraulis's own packer then packs each replica's sequences, so that the comparison
//! is between assignments.
//!
//! - One heap: each sequence, longest first, goes to the replica of least time (Graham 1969). It is the shortest program
//!   that balances well, and hence the baseline that a scheduler has to beat.
//! - Largest differencing (Karmarkar and Karp 1982), the method by which verl and similar systems balance replicas. Every
//!   sequence starts as a partition of its own: one part has it, the other parts are empty. The two partitions of greatest
//!   spread are merged, the fullest part of each with the emptiest of the other, until one partition is left.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hydraulis_core::Millis;
use hydraulis_core::batch::Batch;
use hydraulis_core::construct::pack::Packer;
use hydraulis_core::spec::PackingBudget;

use crate::baseline::{EqualReplicas, Work, decision};

/// Assigns sequences by their time alone, then packs them.
pub fn longest_first(batch: &Batch, replicas: &EqualReplicas) -> Work {
    let mut by_time: BinaryHeap<Reverse<(Millis, usize)>> =
        (0..replicas.count()).map(|replica| Reverse((Millis::ZERO, replica))).collect();
    let mut assigned = vec![Vec::new(); replicas.count()];
    for id in decision::longest_first(batch) {
        if let Some(mut earliest) = by_time.peek_mut() {
            let Reverse((time, replica)) = *earliest;
            assigned[replica].push(id);
            *earliest = Reverse((time + replicas.cost.sequence_ms(batch.tokens()[id]), replica));
        }
    }
    let mut packer = Packer::new(&replicas.capacity, batch, PackingBudget::ONLINE);
    assigned.iter().map(|ids| packer.pack(ids).micro_batches).collect()
}

/// Assigns sequences by their time alone, then packs them.
pub fn karmarkar_karp(batch: &Batch, replicas: &EqualReplicas) -> Work {
    let times: Vec<Millis> = batch.tokens().iter().map(|&tokens| replicas.cost.sequence_ms(tokens)).collect();
    let mut packer = Packer::new(&replicas.capacity, batch, PackingBudget::ONLINE);
    let packed = differenced(&times, replicas.count()).into_iter().map(|mut ids| {
        ids.sort_by_key(|&id| (Reverse(batch.tokens()[id]), id));
        packer.pack(&ids).micro_batches
    });
    packed.collect()
}

/// Divides `times` into parts with nearly equal sums.
fn differenced(times: &[Millis], parts: usize) -> Vec<Vec<usize>> {
    let mut heap: BinaryHeap<Partition> =
        times.iter().enumerate().map(|(id, &time)| Partition::of(id, time, parts)).collect();
    while let Some(first) = heap.pop() {
        match heap.pop() {
            Some(second) => heap.push(first.joined(second)),
            None => return first.parts.into_iter().map(|part| part.ids).collect(),
        }
    }
    vec![Vec::new(); parts]
}

/// Sequences and the sum of their times.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    time: Millis,
    ids: Vec<usize>,
}

/// Parts of some sequences, the fullest first; partitions are ordered by spread, then by their earliest sequence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Partition {
    spread: Millis,
    first: Reverse<usize>,
    parts: Vec<Part>,
}

impl Partition {
    fn of(id: usize, time: Millis, count: usize) -> Partition {
        let mut parts = vec![Part::default(); count];
        parts[0] = Part { time, ids: vec![id] };
        Partition { spread: if count > 1 { time } else { Millis::ZERO }, first: Reverse(id), parts }
    }

    fn joined(mut self, other: Partition) -> Partition {
        for (part, mut opposite) in self.parts.iter_mut().zip(other.parts.into_iter().rev()) {
            part.time += opposite.time;
            part.ids.append(&mut opposite.ids);
        }
        self.parts.sort_by(|one, another| another.cmp(one));
        let last = self.parts.last().map(|part| part.time).unwrap_or_default();
        Partition { spread: self.parts[0].time - last, first: self.first.max(other.first), parts: self.parts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(times: &[f64], parts: usize) -> Vec<f64> {
        let millis: Vec<Millis> = times.iter().copied().map(Millis).collect();
        differenced(&millis, parts).iter().map(|ids| ids.iter().map(|&id| times[id]).sum()).collect()
    }

    #[test]
    fn the_textbook_cases_have_their_known_results() {
        // Differencing 8 7 6 5 4 leaves a difference of 2; 8+7 against 6+5+4 would leave none.
        assert_eq!(sums(&[8.0, 7.0, 6.0, 5.0, 4.0], 2), [16.0, 14.0]);
        assert_eq!(sums(&[6.0, 5.0, 4.0, 3.0], 2), [9.0, 9.0]);
        assert_eq!(sums(&[3.0, 3.0, 3.0], 3), [3.0, 3.0, 3.0]);
        assert_eq!(sums(&[3.0, 2.0], 1), [5.0]);
        assert_eq!(sums(&[3.0], 3), [3.0, 0.0, 0.0]);
    }
}
