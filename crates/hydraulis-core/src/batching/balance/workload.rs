//! The work to balance: sequences with their times, the number of replicas, and the cap.

use std::cmp::Reverse;

use crate::batching::balance::items::Items;
use crate::batching::balance::options::Rules;
use crate::cancellation::CountedCancellation;
use crate::error::{Error, Result};
use crate::units::{Millis, Tokens, count};

/// The greatest coefficient and the greatest time that a caller gives. It admits costs in other units, such as operations,
/// and no time of a batch overflows.
pub(super) const MAX_COST: f64 = 1e24;

/// The time of a sequence of `s` tokens, `quadratic s^2 + linear s`, in milliseconds or any other unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SequenceCost {
    quadratic: f64,
    linear: f64,
}

impl SequenceCost {
    /// No time for tokens, where each sequence has a time of its own.
    pub const NONE: SequenceCost = SequenceCost { quadratic: 0.0, linear: 0.0 };

    /// A cost with the coefficients of `s^2` and `s`, which are from 0 to 1e24, and not both 0.
    pub fn new(quadratic: f64, linear: f64) -> Result<SequenceCost> {
        for (field, value) in [("quadratic_ms_per_token2", quadratic), ("linear_ms_per_token", linear)] {
            if !(0.0..=MAX_COST).contains(&value) {
                return Err(Error::SequenceCost { field, value: value.to_string(), limit: MAX_COST });
            }
        }
        if quadratic + linear == 0.0 {
            return Err(Error::SequenceCost {
                field: "linear_ms_per_token",
                value: "0, as quadratic_ms_per_token2".into(),
                limit: MAX_COST,
            });
        }
        Ok(SequenceCost { quadratic, linear })
    }

    /// The time of a sequence of `tokens` tokens.
    pub fn sequence_ms(self, tokens: Tokens) -> Millis {
        let tokens = tokens.as_f64();
        Millis(tokens * (self.quadratic * tokens + self.linear))
    }
}

/// The sequences of a batch with their times, the replicas and the caps. A group counts as one sequence.
#[derive(Clone, Debug)]
pub(super) struct Workload<'a> {
    pub(super) tokens: Vec<Tokens>,
    /// The tokens that count against the second cap; 0 without one.
    pub(super) extra: Vec<Tokens>,
    pub(super) ms: Vec<Millis>,
    pub(super) longest_first: Vec<usize>,
    pub(super) replicas: usize,
    pub(super) cap: Tokens,
    pub(super) extra_cap: Tokens,
    /// A lower bound on the number of micro-batches that take all sequences, by both caps.
    pub(super) least_micro_batches: usize,
    pub(super) rules: Rules,
    /// `None` if nothing cancels the work.
    pub(super) cancellation: Option<&'a CountedCancellation<'a>>,
}

impl<'a> Workload<'a> {
    /// Counts steps of work; returns whether the work is cancelled. The caller then ends, and its result is discarded.
    pub(super) fn is_cancelled(&self, steps: usize) -> bool {
        self.cancellation.is_some_and(|cancellation| cancellation.count(steps))
    }

    /// The workload of sequences or groups with these tokens, extra tokens and times.
    pub(super) fn new(
        items: Items,
        cap: Tokens,
        rules: Rules,
        cancellation: Option<&'a CountedCancellation<'a>>,
    ) -> Workload<'a> {
        let Items { tokens, extra, ms, .. } = items;
        let mut longest_first: Vec<usize> = (0..tokens.len()).collect();
        longest_first.sort_unstable_by_key(|&id| (Reverse(ms[id]), Reverse(tokens[id]), id));
        let (replicas, extra_cap) = (rules.paces.len(), rules.extra_cap.unwrap_or_default());
        let fewest = |sizes: &[Tokens], cap: Tokens| {
            let mut largest_first = sizes.to_vec();
            largest_first.sort_unstable_by_key(|&size| Reverse(size));
            fewest_bins(largest_first.iter().copied(), cap)
        };
        let by_extra = rules.extra_cap.map(|cap| fewest(&extra, cap)).unwrap_or_default();
        let least_micro_batches = fewest(&tokens, cap).max(by_extra);
        Workload {
            tokens,
            extra,
            ms,
            longest_first,
            replicas,
            cap,
            extra_cap,
            least_micro_batches,
            rules,
            cancellation,
        }
    }

    /// The sort key that puts the longest sequence first.
    pub(super) fn order(&self, id: usize) -> impl Ord + use<> {
        (Reverse(self.ms[id]), Reverse(self.tokens[id]), id)
    }

    /// The time that a replica takes for work and for `micro_batches` micro-batches.
    pub(super) fn time(&self, work: Millis, micro_batches: usize, replica: usize) -> Millis {
        (work + self.rules.fixed * count(micro_batches)) * self.rules.paces[replica]
    }

    /// The time of the shortest sequence.
    pub(super) fn shortest_ms(&self) -> Millis {
        self.longest_first.last().map(|&id| self.ms[id]).unwrap_or_default()
    }

    /// The total time of these sequences.
    pub(super) fn total_ms(&self, ids: &[usize]) -> Millis {
        ids.iter().map(|&id| self.ms[id]).sum()
    }

    /// The mean time of `parts` parts that together hold these sequences.
    pub(super) fn mean_ms(&self, ids: &[usize], parts: usize) -> Millis {
        Millis(self.total_ms(ids).0 / count(parts))
    }

    /// A lower bound on the number of slots.
    pub(super) fn least_slots(&self) -> usize {
        self.least_micro_batches.div_ceil(self.replicas)
    }

    /// The number of sequences of this sequence's length that fit into one micro-batch.
    pub(super) fn together(&self, id: usize) -> usize {
        together(self.tokens[id], self.cap)
    }
}

/// A lower bound on the number of bins that hold all sizes, which come largest first. Their sum fills at least this number of bins. So do the
/// largest ones: a bin has room for no more of them than for copies of the smallest among them.
fn fewest_bins(largest_first: impl Iterator<Item = Tokens> + Clone, cap: Tokens) -> usize {
    let ranked = (1..).zip(largest_first.clone());
    let largest = ranked.map(|(rank, size): (usize, _)| rank.div_ceil(together(size, cap))).max();
    largest_first.sum::<Tokens>().div_ceil(cap).max(largest.unwrap_or_default())
}

/// The number of copies of a size under a cap.
fn together(size: Tokens, cap: Tokens) -> usize {
    cap.0.checked_div(size.0).map_or(usize::MAX, |number| usize::try_from(number).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::batching::balance::items::SequenceValues;

    impl Workload<'_> {
        /// The workload of the sequences of a batch, for the tests of all modules.
        pub(in crate::batching::balance) fn of_batch(
            batch: &Batch,
            cost: SequenceCost,
            cap: Tokens,
            rules: Rules,
        ) -> Workload<'static> {
            Workload::new(Items::new(batch, &SequenceValues::default(), cost, cap, None).unwrap(), cap, rules, None)
        }
    }

    #[test]
    fn a_cost_is_positive_and_has_a_limit() {
        assert_eq!(SequenceCost::new(1.0, 24_576.0).unwrap().sequence_ms(Tokens(10)), Millis(245_860.0));
        for (quadratic, linear) in [(-1.0, 1.0), (1.0, f64::NAN), (f64::INFINITY, 1.0), (0.0, 0.0), (0.0, 1e308)] {
            assert_eq!(SequenceCost::new(quadratic, linear).unwrap_err().code(), "argument_invalid");
        }
    }

    #[test]
    fn the_least_number_of_slots_fits_all_sequences() {
        let least = |lengths: &[i64], replicas| {
            let batch = Batch::new(lengths, None).unwrap();
            Workload::of_batch(&batch, SequenceCost::new(0.0, 1.0).unwrap(), Tokens(10), Rules::free(replicas))
                .least_slots()
        };
        assert_eq!(least(&[10, 10, 1], 1), 3);
        assert_eq!(least(&[10, 10, 1], 2), 2);
        assert_eq!(least(&[6, 6, 6], 1), 3);
        assert_eq!(least(&[5, 5, 5], 4), 1);
        assert_eq!(least(&[4, 4, 4, 4, 4], 1), 3);
    }
}
