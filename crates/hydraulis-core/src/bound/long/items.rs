//! The long sequences of a batch, in groups of about one length.

use crate::batch::Batch;
use crate::bound::batch_sums::BatchSums;
use crate::spec::LongBudget;

/// The groups of the longest sequences, and the sums of all others.
#[derive(Clone, Debug)]
pub(in crate::bound) struct LongSequences {
    /// The longest group first.
    pub(super) groups: Vec<LongGroup>,
    pub(super) others: BatchSums,
    /// Whether most long sequences are in the groups.
    pub(in crate::bound) are_few: bool,
}

/// Sequences that count with the length of the shortest of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LongGroup {
    pub(super) length: f64,
    pub(super) number: usize,
}

impl LongSequences {
    /// The longest groups of the batch, as many as the budget allows.
    pub(in crate::bound) fn new(batch: &Batch, budget: LongBudget) -> LongSequences {
        let mut lengths: Vec<f64> = batch.tokens().iter().map(|tokens| tokens.as_f64()).collect();
        lengths.sort_by(|one, other| other.total_cmp(one));
        let (mut groups, mut at) = (Vec::new(), 0);
        let is_long = |length: f64| length >= lengths[0] * budget.share;
        while at < lengths.len() && is_long(lengths[at]) && groups.len() < budget.groups {
            let least = lengths[at] * (1.0 - budget.rounded);
            let number = lengths[at..].iter().take_while(|&&length| length >= least).count();
            groups.push(LongGroup { length: lengths[at + number - 1], number });
            at += number;
        }
        let left = lengths[at..].iter().take_while(|&&length| is_long(length)).count();
        LongSequences { groups, are_few: left <= at, others: BatchSums::of_lengths(lengths.split_off(at)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_the_length_of_its_shortest_sequence() {
        let batch = Batch::new(&[999, 40, 1_000, 700, 700, 30, 500], None).unwrap();
        let budget = LongBudget { groups: 3, share: 0.5, rounded: 0.01, ..LongBudget::ONLINE };
        let found = LongSequences::new(&batch, budget);
        let groups: Vec<(f64, usize)> = found.groups.iter().map(|group| (group.length, group.number)).collect();
        assert_eq!(groups, [(999.0, 2), (700.0, 2), (500.0, 1)]);
        assert!(found.are_few && !LongSequences::new(&batch, LongBudget { groups: 1, share: 0.4, ..budget }).are_few);
        let half = LongSequences::new(&batch, LongBudget { share: 0.6, ..budget });
        assert_eq!((half.groups.len(), half.others.longest()), (2, 500.0));
        assert_eq!((found.others.sequences(), found.others.longest()), (2, 40.0));
    }
}
