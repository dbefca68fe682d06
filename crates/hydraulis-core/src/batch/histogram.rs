//! The frequency of each length in a data set, and batches drawn from it.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use crate::batch::Batch;
use crate::batch::sequences::checked_length;
use crate::cancellation::Cancellation;
use crate::error::{Error, Result};
use crate::units::{Tokens, count, whole};

/// The most tokens of a drawn batch, more than any training step has.
const MAX_TOKENS: u64 = 10_000_000_000;
/// The most sequences of all drawn batches, which take some gigabytes. Both limits refuse a typing error before an
/// allocation fails.
const MAX_SEQUENCES: u64 = 100_000_000;
/// Sequences drawn between two calls of the cancellation function.
const SEQUENCES_BETWEEN_CALLS: usize = 1 << 16;

/// The number of sequences of each length in a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LengthHistogram {
    /// Distinct lengths in ascending order, each with the number of sequences of at most this length.
    up_to: Vec<(Tokens, u64)>,
}

impl LengthHistogram {
    /// A histogram of `lengths`. Each length occurs as often as its entry of `counts` says, or once without `counts`.
    ///
    /// A length may be given several times. The constructor refuses an input without sequences, a length outside its
    /// range, counts and lengths that differ in number, a negative count, and counts whose sum exceeds 63 bits.
    pub fn new(lengths: &[i64], counts: Option<&[i64]>) -> Result<LengthHistogram> {
        if let Some(counts) = counts.filter(|counts| counts.len() != lengths.len()) {
            return Err(Error::CountsMismatch { counts: counts.len(), lengths: lengths.len() });
        }
        let entries = lengths.iter().enumerate().map(|(entry, &length)| {
            Ok((checked_length(entry, length)?, counts.map_or(1, |counts| counts[entry]), entry))
        });
        let mut entries: Vec<(Tokens, i64, usize)> = entries.collect::<Result<_>>()?;
        entries.sort_unstable();
        let mut up_to: Vec<(Tokens, u64)> = Vec::new();
        let mut total = 0_i64;
        for (length, count, entry) in entries {
            let sum = total.checked_add(count).filter(|_| count >= 0);
            total = sum.ok_or(Error::CountOutOfRange { entry, count, limit: i64::MAX - total })?;
            match up_to.last_mut() {
                Some((last, up_to_last)) if *last == length => *up_to_last = total.unsigned_abs(),
                _ if count > 0 => up_to.push((length, total.unsigned_abs())),
                _ => {}
            }
        }
        if up_to.is_empty() { Err(Error::BatchEmpty) } else { Ok(LengthHistogram { up_to }) }
    }

    /// The lengths that occur, in ascending order, each with its number of sequences.
    pub fn entries(&self) -> impl Iterator<Item = (Tokens, u64)> + '_ {
        let before = std::iter::once(0).chain(self.up_to.iter().map(|&(_, total)| total));
        self.up_to.iter().zip(before).map(|(&(length, total), before)| (length, total - before))
    }

    /// Number of sequences.
    pub fn sequences(&self) -> u64 {
        self.up_to.last().map(|&(_, total)| total).unwrap_or_default()
    }

    /// The longest length.
    pub fn longest(&self) -> Tokens {
        self.up_to.last().map(|&(length, _)| length).unwrap_or_default()
    }

    /// Draws `number` batches. Each batch draws sequences with replacement until it has `tokens` tokens; its last
    /// sequence stays whole. The limit of `tokens` is 10,000,000,000, that of all sequences to expect 100,000,000. An error
    /// from `cancellation` ends the draw.
    ///
    /// The generator is PCG (O'Neill 2014), whose definition is fixed, so a seed gives the same batches on every
    /// machine.
    pub fn sample(&self, tokens: Tokens, number: usize, seed: u64, cancellation: Cancellation) -> Result<Vec<Batch>> {
        if tokens.0 == 0 || number == 0 {
            return Err(Error::NoBatches);
        }
        if tokens.0 > MAX_TOKENS {
            let [value, limit] = [tokens.0, MAX_TOKENS].map(|tokens| i64::try_from(tokens).unwrap_or(i64::MAX));
            return Err(Error::TokenLimit { field: "tokens_per_batch", value, limit });
        }
        // A batch has its last sequence in any case.
        let expected = whole((tokens.as_f64() / self.mean()).max(1.0) * count(number));
        if expected > MAX_SEQUENCES {
            return Err(Error::DrawLimit { tokens, batches: number, expected, limit: MAX_SEQUENCES });
        }
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        (0..number).map(|_| self.batch(tokens, &mut random, cancellation)).collect()
    }

    /// The mean length.
    fn mean(&self) -> f64 {
        let tokens: f64 = self.entries().map(|(length, sequences)| length.as_f64() * count(sequences)).sum();
        tokens / count(self.sequences())
    }

    fn batch(&self, tokens: Tokens, random: &mut Pcg64Mcg, cancellation: Cancellation) -> Result<Batch> {
        cancellation()?;
        let (mut lengths, mut drawn) = (Vec::new(), Tokens(0));
        while drawn < tokens {
            if lengths.len() % SEQUENCES_BETWEEN_CALLS == SEQUENCES_BETWEEN_CALLS - 1 {
                cancellation()?;
            }
            let sequence = below(self.sequences(), random);
            let (length, _) = self.up_to[self.up_to.partition_point(|&(_, total)| total <= sequence)];
            drawn += length;
            lengths.push(i64::try_from(length.0).unwrap_or(i64::MAX));
        }
        Batch::new(&lengths, None)
    }
}

/// A random whole number below `limit`: the high word of a product. Its bias is at most `limit / 2^64` (Lemire 2019).
fn below(limit: u64, random: &mut Pcg64Mcg) -> u64 {
    let product = u128::from(random.next_u64()) * u128::from(limit);
    u64::try_from(product >> 64).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cancellation::NEVER_CANCELLED;

    fn entries(histogram: &LengthHistogram) -> Vec<(u64, u64)> {
        histogram.entries().map(|(length, count)| (length.0, count)).collect()
    }

    #[test]
    fn equal_lengths_are_counted_together() {
        let counted = LengthHistogram::new(&[9, 5, 9, 7, 2], Some(&[1, 3, 2, 0, 0])).unwrap();
        assert_eq!(entries(&counted), [(5, 3), (9, 3)]);
        assert_eq!((counted.sequences(), counted.longest()), (6, Tokens(9)));
        assert_eq!(LengthHistogram::new(&[9, 5, 9, 5, 5, 9], None).unwrap(), counted);
    }

    #[test]
    fn bad_input_is_named() {
        let error = |lengths: &[i64], counts: Option<&[i64]>| LengthHistogram::new(lengths, counts).unwrap_err();
        assert_eq!(error(&[], None), Error::BatchEmpty);
        assert_eq!(error(&[5], Some(&[0])), Error::BatchEmpty);
        assert!(matches!(error(&[5, 0], None), Error::LengthOutOfRange { sequence: 1, length: 0, .. }));
        assert_eq!(error(&[5, 6], Some(&[1])), Error::CountsMismatch { counts: 1, lengths: 2 });
        for count in [-1, i64::MAX] {
            let refused = Error::CountOutOfRange { entry: 1, count, limit: i64::MAX - 1 };
            assert_eq!(error(&[5, 6], Some(&[1, count])), refused);
            assert_eq!(refused.code(), "lengths_invalid");
        }
        let histogram = LengthHistogram::new(&[5], None).unwrap();
        let sample = |tokens, number| histogram.sample(Tokens(tokens), number, 0, NEVER_CANCELLED);
        assert_eq!(sample(0, 1).unwrap_err(), Error::NoBatches);
        assert_eq!(sample(9, 0).unwrap_err(), Error::NoBatches);
        for (tokens, number, expected) in [(5_000_000_000, 1, 1_000_000_000), (1, 1 << 40, 1 << 40)] {
            let (tokens, limit) = (Tokens(tokens), 100_000_000);
            let refused = Error::DrawLimit { tokens, batches: number, expected, limit };
            assert_eq!(sample(tokens.0, number).unwrap_err(), refused);
        }
        let error = sample(1_000_000_000_000_000_000, 1).unwrap_err();
        assert!(matches!(error, Error::TokenLimit { field: "tokens_per_batch", limit: 10_000_000_000, .. }));
    }

    #[test]
    fn a_long_draw_is_ended_within_a_batch() {
        let histogram = LengthHistogram::new(&[1], None).unwrap();
        let calls = std::cell::Cell::new(0);
        let cancel = || {
            calls.set(calls.get() + 1);
            if calls.get() < 3 { Ok(()) } else { Err(Error::Stopped) }
        };
        assert_eq!(histogram.sample(Tokens(10_000_000), 1, 0, &cancel).unwrap_err(), Error::Stopped);
    }

    #[test]
    fn batches_follow_the_histogram_and_the_seed() {
        let histogram = LengthHistogram::new(&[10, 20, 70], Some(&[50, 30, 20])).unwrap();
        let sample = |seed| histogram.sample(Tokens(25_000), 4, seed, NEVER_CANCELLED).unwrap();
        let batches = sample(7);
        assert_eq!(batches, sample(7));
        assert_ne!(batches, sample(8));
        let lengths: Vec<u64> = batches.iter().flat_map(Batch::tokens).map(|tokens| tokens.0).collect();
        for (length, share) in [(10, 0.5), (20, 0.3), (70, 0.2)] {
            let drawn = lengths.iter().filter(|&&one| one == length).count();
            let found = crate::units::count(drawn) / crate::units::count(lengths.len());
            assert!((found - share).abs() < 0.02, "{length}: {found}");
        }
        for batch in &batches {
            let last = batch.tokens()[batch.len() - 1];
            assert!(batch.total_tokens() >= Tokens(25_000) && batch.total_tokens() - last < Tokens(25_000));
        }
    }
}
