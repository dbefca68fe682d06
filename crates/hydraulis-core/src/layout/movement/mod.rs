//! Moves elements from any layout to any other, on the same ranks or on others.
//!
//! A layout is a list of [`Holding`]s: sharded, replicated, partly held, or a union of replicas that are cut in different
//! ways. Between the edges of all holdings, everybody holds an interval whole or not at all: the layouts are swept once,
//! interval by interval, so the cost grows with holdings and with what is moved, not with pairs of ranks.
//!
//! - [`spread`]: sources are copies of each other, and each target needs one of them. What a rank has itself stays; else a
//!   sender in its node is preferred, and among equals each interval is shared out so that those who have sent least send
//!   most: loads level out like water.
//! - [`gather`]: sources are parts of a sum, and each target needs them all.
//!
//! Moves are lists in the order of receiver, sender and element. Neighbouring ones between two ranks are joined, so a rank
//! has few long runs to pack. [`transfer()`](crate::layout::transfer()) is not made of these: at home each element lies
//! once, so there is nothing to choose, and a rank needs no more than its own trade; between nodes it adds sums up on the way.

mod gather;
mod spread;
mod sweep;

use std::collections::BTreeMap;
use std::ops::Range;

pub use gather::gather;
pub use spread::spread;

/// Elements that a rank holds, in one run of its buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The rank.
    pub rank: u32,
    /// Which elements of the whole.
    pub elements: Range<u64>,
    /// Where the first of them lies in the rank's buffer.
    pub offset: u64,
}

/// Elements on their way from one rank's buffer to another's, or to another place of the same rank's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The sender.
    pub from: u32,
    /// The receiver.
    pub to: u32,
    /// Where they start in the sender's buffer.
    pub from_offset: u64,
    /// Where they start in the receiver's.
    pub to_offset: u64,
    /// How many they are.
    pub elements: u64,
}

impl Move {
    /// From the interval's start of one holding to that of another.
    fn of(interval: &Range<u64>, from: &Holding, to: &Holding) -> Move {
        Move {
            from: from.rank,
            to: to.rank,
            from_offset: from.offset + interval.start - from.elements.start,
            to_offset: to.offset + interval.start - to.elements.start,
            elements: interval.end - interval.start,
        }
    }

    /// Whether it is sent at all.
    pub fn is_sent(&self) -> bool {
        self.from != self.to
    }
}

/// Moves by receiver and sender, with neighbours joined.
#[derive(Default)]
struct Moves(BTreeMap<(u32, u32), Vec<Move>>);

impl Moves {
    fn push(&mut self, new: Move) {
        let between = self.0.entry((new.to, new.from)).or_default();
        let follows = |last: &&mut Move| {
            last.from_offset + last.elements == new.from_offset && last.to_offset + last.elements == new.to_offset
        };
        match between.last_mut().filter(follows) {
            Some(last) => last.elements += new.elements,
            None => between.push(new),
        }
    }

    fn into_vec(self) -> Vec<Move> {
        self.0.into_values().flatten().collect()
    }
}

/// What each rank has sent, and who may send next.
#[derive(Default)]
struct Loads(BTreeMap<u32, u64>);

impl Loads {
    /// Cuts an interval into a part for each of some ranks, so that those with the least load get the most, and adds it to
    /// their loads. Candidates come in rank order; a part may be empty.
    fn share(&mut self, interval: &Range<u64>, candidates: &[u32]) -> Vec<Range<u64>> {
        let mut level: Vec<u64> = candidates.iter().map(|rank| self.0.get(rank).copied().unwrap_or_default()).collect();
        let before = level.clone();
        fill(&mut level, interval.end - interval.start);
        let mut start = interval.start;
        let parts = candidates.iter().zip(level.iter().zip(before)).map(|(&rank, (&after, before))| {
            self.0.insert(rank, after);
            let part = start..start + (after - before);
            start = part.end;
            part
        });
        parts.collect()
    }
}

/// Pours `amount` over these levels: the lowest rise first, together, and what is left over goes to those that were lowest.
fn fill(levels: &mut [u64], mut amount: u64) {
    let mut order: Vec<usize> = (0..levels.len()).collect();
    order.sort_by_key(|&index| (levels[index], index));
    for lowest in 1..=order.len() {
        let (together, level) = (lowest as u64, levels[order[0]]);
        let step = order.get(lowest).map_or(u64::MAX, |&next| levels[next] - level);
        let rise = step.min(amount / together);
        for &index in &order[..lowest] {
            levels[index] += rise;
        }
        amount -= rise * together;
        if rise < step {
            for &index in order.iter().take(usize::try_from(amount).unwrap_or(usize::MAX)) {
                levels[index] += 1;
            }
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(levels: &[u64], amount: u64) -> Vec<u64> {
        let mut levels = levels.to_vec();
        fill(&mut levels, amount);
        levels
    }

    #[test]
    fn the_lowest_rise_first_and_together() {
        assert_eq!(filled(&[5, 1, 3], 2), [5, 3, 3]);
        assert_eq!(filled(&[5, 1, 3], 6), [5, 5, 5]);
        assert_eq!(filled(&[5, 1, 3], 10), [6, 7, 6]);
        assert_eq!(filled(&[0, 0, 0], 100), [34, 33, 33]);
        assert_eq!((filled(&[4], 0), filled(&[4], 9), filled(&[], 0)), (vec![4], vec![13], vec![]));
    }
}
