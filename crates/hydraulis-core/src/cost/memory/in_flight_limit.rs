//! The in-flight limit: most tokens of consecutive micro-batches of a replica.

use crate::units::{Tokens, count};

/// Any `micro_batches` consecutive micro-batches of a replica, or all if they are fewer, hold at most `tokens` tokens.
///
/// Empty micro-batches, which cost time and hold nothing, may separate micro-batches that do not fit together: a
/// replica can therefore run any set of sequences each of which it admits. Fewer than `micro_batches` of them in a row
/// are enough, and none at the ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlightLimit {
    /// Number of consecutive micro-batches, at least one.
    pub micro_batches: usize,
    /// Most tokens of these together.
    pub tokens: Tokens,
}

impl InFlightLimit {
    /// The micro-batches of these tokens in this order, by their indices, with an empty one (none) wherever the next
    /// does not fit yet. Each holds at most the limit's tokens.
    pub fn spaced(self, tokens: &[Tokens]) -> Vec<Option<usize>> {
        let mut places: Vec<Option<usize>> = Vec::with_capacity(tokens.len());
        for (next, &own) in tokens.iter().enumerate() {
            while self.tokens_before_next(&places, tokens) + own > self.tokens {
                places.push(None);
            }
            places.push(Some(next));
        }
        places
    }

    /// Tokens that count together with the next micro-batch.
    fn tokens_before_next(self, places: &[Option<usize>], tokens: &[Tokens]) -> Tokens {
        places.iter().rev().take(self.micro_batches - 1).flatten().map(|&place| tokens[place]).sum()
    }

    /// Most tokens of `micro_batches` together.
    pub fn most_tokens(self, micro_batches: usize) -> f64 {
        count(self.groups(micro_batches)) * self.tokens.as_f64()
    }

    /// Number of full or partial windows in `micro_batches` micro-batches.
    pub fn groups(self, micro_batches: usize) -> usize {
        micro_batches.div_ceil(self.micro_batches)
    }

    /// Most micro-batches of this number of sequences, empty ones included.
    pub fn most_micro_batches(self, sequences: usize) -> usize {
        let between = sequences.saturating_sub(1).saturating_mul(self.micro_batches);
        if sequences == 0 { 0 } else { between.saturating_add(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn empty_micro_batches_precede_one_that_does_not_fit() {
        let in_flight_limit = InFlightLimit { micro_batches: 3, tokens: Tokens(30) };
        let spaced = |tokens: [u64; 3]| in_flight_limit.spaced(&tokens.map(Tokens));
        assert_eq!(spaced([10, 10, 10]), [Some(0), Some(1), Some(2)]);
        assert_eq!(spaced([20, 10, 11]), [Some(0), Some(1), None, Some(2)]);
        assert_eq!(spaced([30, 1, 30]), [Some(0), None, None, Some(1), None, None, Some(2)]);
        assert_eq!(in_flight_limit.spaced(&[]), []);
        assert_eq!(InFlightLimit { micro_batches: 1, tokens: Tokens(9) }.spaced(&[Tokens(9); 2]), [Some(0), Some(1)]);
    }

    proptest! {
        #[test]
        fn any_micro_batches_can_be_spaced(
            span in 1..6_usize,
            tokens in proptest::collection::vec(1..=100_u64, 0..12),
        ) {
            let in_flight_limit = InFlightLimit { micro_batches: span, tokens: Tokens(100) };
            let tokens: Vec<Tokens> = tokens.into_iter().map(Tokens).collect();
            let places = in_flight_limit.spaced(&tokens);
            let placed: Vec<Tokens> = places.iter().map(|place| place.map_or(Tokens(0), |at| tokens[at])).collect();
            for run in placed.windows(span.min(placed.len()).max(1)) {
                prop_assert!(run.iter().copied().sum::<Tokens>() <= in_flight_limit.tokens, "{placed:?}");
            }
            prop_assert!(places.iter().copied().flatten().eq(0..tokens.len()));
            prop_assert!(placed.len() <= in_flight_limit.most_micro_batches(tokens.len()));
            let total: Tokens = tokens.iter().copied().sum();
            prop_assert!(total.as_f64() <= in_flight_limit.most_tokens(placed.len()));
        }
    }
}
