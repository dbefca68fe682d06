//! The least total dual price of a batch: each sequence on its cheapest class.

use crate::batch::Batch;
use crate::units::whole;

/// A crossing is found at most this share too early.
const ROUNDING: f64 = 1e-9;

/// Distinct lengths in ascending order, with running sums.
#[derive(Clone, Debug)]
pub(super) struct BatchSums {
    lengths: Vec<f64>,
    /// `sums[i]` is the load of all sequences of the first `i` lengths.
    sums: Vec<Load>,
}

/// The dual price of a sequence of `s` tokens on one class: `s (slope s + offset)`, and `slot` more above a length of
/// `large`; defined up to a length of `limit`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Price {
    pub(super) slope: f64,
    pub(super) offset: f64,
    pub(super) slot: f64,
    pub(super) large: f64,
    pub(super) limit: f64,
}

/// Sums over some sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Load {
    pub(super) sequences: f64,
    pub(super) tokens: f64,
    /// Sum of squared lengths.
    pub(super) squares: f64,
    /// Number of large sequences.
    pub(super) large: f64,
}

impl BatchSums {
    pub(super) fn new(batch: &Batch) -> BatchSums {
        BatchSums::of_lengths(batch.tokens().iter().map(|tokens| tokens.as_f64()).collect())
    }

    pub(super) fn of_lengths(mut all: Vec<f64>) -> BatchSums {
        all.sort_by(f64::total_cmp);
        let (mut lengths, mut sums) = (Vec::new(), vec![Load::default()]);
        let mut sum = Load::default();
        for (index, &length) in all.iter().enumerate() {
            sum.add(Load { sequences: 1.0, tokens: length, squares: length * length, large: 0.0 });
            if all.get(index + 1) != Some(&length) {
                lengths.push(length);
                sums.push(sum);
            }
        }
        BatchSums { lengths, sums }
    }

    /// All sequences.
    pub(super) fn total(&self) -> Load {
        self.between(0, self.lengths.len())
    }

    /// Number of sequences, which is the most micro-batches possible.
    pub(super) fn sequences(&self) -> usize {
        usize::try_from(whole(self.total().sequences)).unwrap_or(usize::MAX)
    }

    /// The greatest length.
    pub(super) fn longest(&self) -> f64 {
        self.lengths.last().copied().unwrap_or_default()
    }

    /// Assigns each sequence to its cheapest class: the sum of these prices, and each class's load. None if a
    /// sequence is above every limit.
    ///
    /// A sequence's price is a parabola in its length, with a step at the length from which slots count. The cheapest
    /// classes follow the lower envelope, so the sum costs a few binary searches.
    pub(super) fn cheapest(&self, prices: &[Price], loads: &mut [Load]) -> Option<f64> {
        loads.fill(Load::default());
        let (mut total, mut at) = (0.0, 0);
        while at < self.lengths.len() {
            let length = self.lengths[at];
            let class = cheapest_at(length, prices)?;
            let end = self.end_of(at, class, prices);
            let mut part = self.between(at, end);
            if length > prices[class].large {
                part.large = part.sequences;
            }
            total += prices[class].of(part);
            loads[class].add(part);
            at = end;
        }
        Some(total)
    }

    /// The ends of the ranges of lengths that have the same cheapest class, with their prices; none from the first
    /// sequence that is above every limit.
    pub(super) fn corners(&self, prices: &[Price]) -> Vec<(f64, f64)> {
        let (mut corners, mut at) = (Vec::new(), 0);
        while let Some(class) = self.lengths.get(at).and_then(|&length| cheapest_at(length, prices)) {
            let end = self.end_of(at, class, prices);
            corners.extend([self.lengths[at], self.lengths[end - 1]].map(|length| (length, prices[class].at(length))));
            at = end;
        }
        corners
    }

    /// The greatest length of a sequence up to `limit`.
    pub(super) fn at_most(&self, limit: f64) -> Option<f64> {
        let above = self.lengths.partition_point(|&length| length <= limit);
        above.checked_sub(1).map(|place| self.lengths[place])
    }

    /// At most this many lengths, at equal distances in ascending order, and the greatest.
    pub(super) fn sample(&self, most: usize) -> Vec<f64> {
        let step = self.lengths.len().div_ceil(most).max(1);
        self.lengths.iter().rev().step_by(step).copied().collect()
    }

    /// The index at or after `at` from which another class may be the cheapest, or `class` no longer admits the
    /// length.
    fn end_of(&self, at: usize, class: usize, prices: &[Price]) -> usize {
        let own = prices[class];
        let from = self.lengths[at];
        // Beyond a boundary of its own another class only becomes dearer, and so is not missed.
        let crossings = prices.iter().filter_map(|other| own.undercut_by(other, from));
        let until = crossings.fold(own.limit.min(own.boundary(from)), f64::min);
        let rest = &self.lengths[at + 1..];
        at + 1 + rest.partition_point(|&length| length <= until)
    }

    fn between(&self, start: usize, end: usize) -> Load {
        let (before, until) = (self.sums[start], self.sums[end]);
        Load {
            sequences: until.sequences - before.sequences,
            tokens: until.tokens - before.tokens,
            squares: until.squares - before.squares,
            large: 0.0,
        }
    }
}

impl Price {
    fn of(&self, load: Load) -> f64 {
        self.slope * load.squares + self.offset * load.tokens + self.slot * load.large
    }

    pub(crate) fn at(&self, length: f64) -> f64 {
        (self.slope * length + self.offset) * length + self.slot_at(length)
    }

    fn slot_at(&self, length: f64) -> f64 {
        if length > self.large { self.slot } else { 0.0 }
    }

    /// The greatest length up to which sequences are large, or not large, like one of this length.
    fn boundary(&self, length: f64) -> f64 {
        if length > self.large { f64::INFINITY } else { self.large }
    }

    /// The length, at or above `from`, from which `other` is cheaper, as long as each stays large or not large; at
    /// `from` it is not cheaper.
    fn undercut_by(&self, other: &Price, from: f64) -> Option<f64> {
        let (a, b) = (other.slope - self.slope, other.offset - self.offset);
        let c = other.slot_at(from) - self.slot_at(from);
        let root = (b * b - 4.0 * a * c).sqrt();
        // Of the two roots of a s^2 + b s + c, the one where it falls, without cancellation; not a number if none
        // exists.
        let falls = if b < 0.0 { 2.0 * c / (root - b) } else { -(b + root) / (2.0 * a) };
        (falls >= from * (1.0 - ROUNDING) && falls < other.limit).then_some(falls.max(from))
    }
}

impl Load {
    fn add(&mut self, other: Load) {
        self.sequences += other.sequences;
        self.tokens += other.tokens;
        self.squares += other.squares;
        self.large += other.large;
    }

    /// `sum of a s^2 + b s`.
    pub(super) fn work(&self, quadratic: f64, linear: f64) -> f64 {
        quadratic * self.squares + linear * self.tokens
    }
}

/// The price of a length on its cheapest class; none if it is above every limit.
pub(super) fn least_price(length: f64, prices: &[Price]) -> Option<f64> {
    cheapest_at(length, prices).map(|class| prices[class].at(length))
}

/// The class of least price for a length; among equals the one that becomes cheaper for longer sequences.
fn cheapest_at(length: f64, prices: &[Price]) -> Option<usize> {
    let admitting = (0..prices.len()).filter(|&class| length <= prices[class].limit);
    admitting.min_by(|&one, &other| {
        let (one, other) = (&prices[one], &prices[other]);
        one.at(length).total_cmp(&other.at(length)).then(one.slope.total_cmp(&other.slope))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn price() -> impl Strategy<Value = Price> {
        let whole = |most: u32| (0..most).prop_map(f64::from);
        (whole(4), whole(60), whole(3), whole(120), 40..160_u32).prop_map(|(slope, offset, slot, large, limit)| {
            let limit = f64::from(limit);
            Price { slope, offset, slot: 200.0 * slot, large, limit }
        })
    }

    proptest! {
        #[test]
        fn each_sequence_costs_the_least(
            lengths in prop::collection::vec(1..120_i64, 1..60),
            prices in prop::collection::vec(price(), 1..6),
        ) {
            let batch = BatchSums::new(&Batch::new(&lengths, None).unwrap());
            let mut loads = vec![Load::default(); prices.len()];
            let lengths: Vec<f64> = batch.lengths_repeated();
            let least = |&length: &f64| {
                let admitting = prices.iter().filter(|price| length <= price.limit);
                admitting.map(|price| price.at(length)).min_by(f64::total_cmp)
            };
            let expected: Option<f64> = lengths.iter().map(least).sum();
            let found = batch.cheapest(&prices, &mut loads);
            prop_assert_eq!(found.is_some(), expected.is_some());
            if let (Some(found), Some(expected)) = (found, expected) {
                prop_assert!((found - expected).abs() <= 1e-9 * expected, "{found} {expected}");
                let costs: f64 = prices.iter().zip(&loads).map(|(price, load)| price.of(*load)).sum();
                prop_assert!((costs - expected).abs() <= 1e-9 * expected, "{costs} {expected}");
                let shared: f64 = loads.iter().map(|load| load.sequences).sum();
                prop_assert_eq!(whole(shared), lengths.len() as u64);
            }
        }
    }

    impl BatchSums {
        /// The length of every sequence.
        fn lengths_repeated(&self) -> Vec<f64> {
            let counts = self.sums.windows(2).map(|sums| sums[1].sequences - sums[0].sequences);
            let of_length = |(length, count): (&f64, f64)| vec![*length; usize::try_from(whole(count)).unwrap()];
            self.lengths.iter().zip(counts).flat_map(of_length).collect()
        }
    }
}
