//! The sequences of a batch, shared out where each is cheapest.

use crate::lengths::Batch;
use crate::units::whole;

/// Distinct lengths in ascending order, with running sums.
#[derive(Clone, Debug)]
pub(super) struct Demand {
    lengths: Vec<f64>,
    /// `sums[i]` is the load of all sequences with the first `i` lengths.
    sums: Vec<Load>,
}

/// What a sequence of `s` tokens costs on one scheme: `s (slope s + offset)`, and `slot` more above a length of
/// `large`; up to a length of `limit`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Price {
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
    /// Of lengths.
    pub(super) squares: f64,
    /// How many of the sequences are large.
    pub(super) large: f64,
}

impl Demand {
    pub(super) fn new(batch: &Batch) -> Demand {
        let mut all: Vec<f64> = batch.tokens().iter().map(|tokens| tokens.as_f64()).collect();
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
        Demand { lengths, sums }
    }

    /// All sequences.
    pub(super) fn total(&self) -> Load {
        self.between(0, self.lengths.len())
    }

    /// Number of sequences, the most micro-batches there can be.
    pub(super) fn sequences(&self) -> usize {
        usize::try_from(whole(self.total().sequences)).unwrap_or(usize::MAX)
    }

    /// The greatest length.
    pub(super) fn longest(&self) -> f64 {
        self.lengths.last().copied().unwrap_or_default()
    }

    /// Each sequence on the scheme where it costs least: the sum of these costs, and each scheme's load. None where
    /// a sequence is above every limit.
    ///
    /// A token's price is a line in the length as long as no scheme's slots count, so schemes follow each other along
    /// the lower envelope of lines: the cost is that of a few binary searches. The large ones are looked at length by
    /// length.
    pub(super) fn cheapest(&self, prices: &[Price], loads: &mut [Load]) -> Option<f64> {
        loads.fill(Load::default());
        let slots = prices.iter().filter(|price| price.slot > 0.0).map(|price| price.large);
        let small = slots.fold(f64::INFINITY, f64::min);
        let (mut total, mut at) = (0.0, 0);
        while at < self.lengths.len() {
            let length = self.lengths[at];
            let scheme = cheapest_at(length, prices)?;
            let end = if length <= small { self.end_of(at, scheme, prices, small) } else { at + 1 };
            let mut part = self.between(at, end);
            if length > prices[scheme].large {
                part.large = part.sequences;
            }
            total += prices[scheme].of(part);
            loads[scheme].add(part);
            at = end;
        }
        Some(total)
    }

    /// Where, from `at` on, `scheme` no longer is the cheapest or no longer admits the length, or slots count.
    fn end_of(&self, at: usize, scheme: usize, prices: &[Price], small: f64) -> usize {
        let own = prices[scheme];
        let from = self.lengths[at];
        let crossing = |other: &Price| {
            let length = (other.offset - own.offset) / (own.slope - other.slope);
            (other.slope < own.slope && length < other.limit).then_some(length.max(from))
        };
        let until = prices.iter().filter_map(crossing).fold(own.limit.min(own.boundary(from)).min(small), f64::min);
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

    fn at(&self, length: f64) -> f64 {
        let slot = if length > self.large { self.slot } else { 0.0 };
        (self.slope * length + self.offset) * length + slot
    }

    /// Up to which length sequences are as large, or not, as one of this length.
    fn boundary(&self, length: f64) -> f64 {
        if length > self.large { f64::INFINITY } else { self.large }
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

/// The scheme of least price for a length; among equals the one that gets cheaper for longer ones.
fn cheapest_at(length: f64, prices: &[Price]) -> Option<usize> {
    let admitting = (0..prices.len()).filter(|&scheme| length <= prices[scheme].limit);
    admitting.min_by(|&one, &other| {
        let (one, other) = (&prices[one], &prices[other]);
        one.at(length).total_cmp(&other.at(length)).then(one.slope.total_cmp(&other.slope))
    })
}
