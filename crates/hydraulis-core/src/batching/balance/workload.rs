//! The work to balance: sequences with their times, the number of replicas, and the cap.

use std::cmp::Reverse;

use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::units::{Millis, Tokens, count};

/// The time of a sequence of `s` tokens, `quadratic s^2 + linear s`, in milliseconds or any other unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SequenceCost {
    quadratic: f64,
    linear: f64,
}

impl SequenceCost {
    /// A cost with the coefficients of `s^2` and `s`, which are finite, not negative, and not both 0.
    pub fn new(quadratic: f64, linear: f64) -> Result<SequenceCost> {
        for (field, value) in [("quadratic_ms_per_token2", quadratic), ("linear_ms_per_token", linear)] {
            if !(value.is_finite() && value >= 0.0) {
                return Err(Error::SequenceCost { field, value: value.to_string() });
            }
        }
        if quadratic + linear == 0.0 {
            return Err(Error::SequenceCost {
                field: "linear_ms_per_token",
                value: "0, as quadratic_ms_per_token2".into(),
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

/// The sequences of a batch with their times, the number of replicas, and the cap.
#[derive(Debug)]
pub(super) struct Workload<'a> {
    pub(super) tokens: &'a [Tokens],
    pub(super) ms: Vec<Millis>,
    pub(super) longest_first: Vec<usize>,
    pub(super) replicas: usize,
    pub(super) cap: Tokens,
}

impl<'a> Workload<'a> {
    pub(super) fn new(batch: &'a Batch, cost: SequenceCost, replicas: usize, cap: Tokens) -> Workload<'a> {
        let tokens = batch.tokens();
        let mut longest_first: Vec<usize> = (0..tokens.len()).collect();
        longest_first.sort_unstable_by_key(|&id| (Reverse(tokens[id]), id));
        let ms = tokens.iter().map(|&tokens| cost.sequence_ms(tokens)).collect();
        Workload { tokens, ms, longest_first, replicas, cap }
    }

    /// The time of the shortest sequence.
    pub(super) fn least_ms(&self) -> Millis {
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

    /// A lower bound on the number of slots. The tokens fill at least this number of slots. So do the longest
    /// sequences: a micro-batch has room for no more of them than for copies of the shortest among them.
    pub(super) fn least_slots(&self) -> usize {
        let tokens: Tokens = self.tokens.iter().copied().sum();
        let ranked = (1..).zip(&self.longest_first);
        let longest = ranked.map(|(rank, &id): (usize, _)| rank.div_ceil(self.together(id))).max();
        tokens.div_ceil(self.cap).max(longest.unwrap_or_default()).div_ceil(self.replicas)
    }

    /// The number of sequences of this sequence's length that fit into one micro-batch.
    pub(super) fn together(&self, id: usize) -> usize {
        usize::try_from(self.cap.0 / self.tokens[id].0).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_finite_positive_and_something() {
        assert_eq!(SequenceCost::new(1.0, 24_576.0).unwrap().sequence_ms(Tokens(10)), Millis(245_860.0));
        for (quadratic, linear) in [(-1.0, 1.0), (1.0, f64::NAN), (f64::INFINITY, 1.0), (0.0, 0.0)] {
            assert_eq!(SequenceCost::new(quadratic, linear).unwrap_err().code(), "argument_invalid");
        }
    }

    #[test]
    fn the_least_number_of_slots() {
        let least = |lengths: &[i64], replicas| {
            let batch = Batch::new(lengths, None).unwrap();
            Workload::new(&batch, SequenceCost::new(0.0, 1.0).unwrap(), replicas, Tokens(10)).least_slots()
        };
        assert_eq!(least(&[10, 10, 1], 1), 3);
        assert_eq!(least(&[10, 10, 1], 2), 2);
        assert_eq!(least(&[6, 6, 6], 1), 3);
        assert_eq!(least(&[5, 5, 5], 4), 1);
        assert_eq!(least(&[4, 4, 4, 4, 4], 1), 3);
    }
}
