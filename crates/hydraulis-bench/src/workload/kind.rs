//! Kinds of batches that ask different things of a planner.

use hydraulis_core::Tokens;
use hydraulis_core::batch::Batch;

use crate::error::Result;
use crate::numbers::{count, rounded};
use crate::workload::cut_into_batches;
use crate::workload::draw::Random;

/// A kind of batches: its name, and its lengths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kind {
    /// The name in tables.
    pub name: &'static str,
    long: Long,
    others: Law,
}

/// The long sequences at the start of each batch: a number from `least` to `most`, each of a uniform share of the
/// longest length.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Long {
    least: u32,
    most: u32,
    shares: [f64; 2],
}

/// The law of a length.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Law {
    /// Log-normal, by the mean and the standard deviation of the logarithm.
    Lognormal(f64, f64),
    /// Uniform from 1 to this share of the longest length.
    Uniform(f64),
    /// One of this number is near a third of the longest length, and the others have 200 to 800 tokens.
    Bimodal(f64),
    /// Pareto from 100 tokens with this exponent.
    Pareto(f64),
    /// This number of tokens.
    Equal(f64),
}

const NONE: Long = Long { least: 0, most: 0, shares: [0.0; 2] };

impl Kind {
    /// Every kind that is drawn.
    pub const ALL: [Kind; 12] = [
        Kind { name: "lognormal(6.2,1.2)", long: NONE, others: Law::Lognormal(6.2, 1.2) },
        Kind { name: "lognormal(6.2,1.8)", long: NONE, others: Law::Lognormal(6.2, 1.8) },
        Kind { name: "code", long: NONE, others: Law::Lognormal(7.2, 1.5) },
        Kind { name: "chat", long: NONE, others: Law::Lognormal(5.5, 0.8) },
        Kind { name: "pareto", long: NONE, others: Law::Pareto(1.1) },
        Kind { name: "uniform", long: NONE, others: Law::Uniform(0.25) },
        Kind { name: "uniform-long", long: NONE, others: Law::Uniform(1.0) },
        Kind { name: "bimodal", long: NONE, others: Law::Bimodal(40.0) },
        Kind { name: "equal", long: NONE, others: Law::Equal(3_000.0) },
        Kind {
            name: "one-long",
            long: Long { least: 1, most: 1, shares: [0.9, 1.0] },
            others: Law::Lognormal(6.0, 0.9),
        },
        Kind {
            name: "few-long",
            long: Long { least: 3, most: 5, shares: [0.5, 1.0] },
            others: Law::Lognormal(6.0, 0.9),
        },
        Kind {
            name: "some-long",
            long: Long { least: 6, most: 12, shares: [0.2, 0.7] },
            others: Law::Lognormal(6.0, 0.9),
        },
    ];

    /// `number` batches of at least `tokens` each, of lengths up to `longest`; equal seeds give equal batches.
    pub fn batches(&self, seed: u64, tokens: u64, number: usize, longest: Tokens) -> Result<Vec<Batch>> {
        let mut random = Random::new(seed);
        let mut batches = Vec::with_capacity(number);
        for _ in 0..number {
            let long = self.long.lengths(&mut random, longest);
            let others = std::iter::repeat_with(|| self.others.length(&mut random, longest));
            batches.extend(cut_into_batches(long.into_iter().chain(others), tokens, 1)?);
        }
        Ok(batches)
    }
}

impl Long {
    fn lengths(&self, random: &mut Random, longest: Tokens) -> Vec<i64> {
        let more = count(self.most - self.least + 1) * (1.0 - random.uniform());
        let number = count(self.least) + more.floor();
        let [low, high] = self.shares;
        let mut lengths = Vec::new();
        while count(lengths.len()) < number {
            lengths.push(clipped((low + (high - low) * random.uniform()) * longest.as_f64(), longest));
        }
        lengths
    }
}

impl Law {
    fn length(self, random: &mut Random, longest: Tokens) -> i64 {
        let length = match self {
            Law::Lognormal(mu, sigma) => (mu + sigma * random.normal()).exp(),
            Law::Uniform(share) => share * longest.as_f64() * random.uniform(),
            Law::Bimodal(odds) if random.uniform() * odds <= 1.0 => longest.as_f64() * (0.25 + 0.15 * random.uniform()),
            Law::Bimodal(_) => 200.0 + 600.0 * random.uniform(),
            Law::Pareto(exponent) => 100.0 * random.uniform().powf(-1.0 / exponent),
            Law::Equal(tokens) => tokens,
        };
        clipped(length, longest)
    }
}

fn clipped(length: f64, longest: Tokens) -> i64 {
    rounded(length, crate::numbers::length(longest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(name: &str, longest: u64) -> Vec<Vec<u64>> {
        let kind = Kind::ALL.iter().find(|kind| kind.name == name).unwrap();
        let batches = kind.batches(3, 100_000, 8, Tokens(longest)).unwrap();
        batches.iter().map(|batch| batch.tokens().iter().map(|tokens| tokens.0).collect()).collect()
    }

    #[test]
    fn every_kind_has_full_batches_of_admitted_lengths() {
        for kind in Kind::ALL {
            for longest in [2_000, 30_000] {
                for batch in lengths(kind.name, longest) {
                    assert!(batch.iter().sum::<u64>() >= 100_000, "{}", kind.name);
                    assert!(batch.iter().all(|length| (1..=longest).contains(length)), "{}", kind.name);
                }
            }
        }
    }

    #[test]
    fn long_sequences_are_as_many_as_their_kind_says() {
        for (name, long, numbers) in [("one-long", 27_000, 1..=1), ("few-long", 15_000, 3..=5)] {
            for batch in lengths(name, 30_000) {
                assert!(numbers.contains(&batch.iter().filter(|&&length| length >= long).count()), "{name}");
            }
        }
        let bimodal = lengths("bimodal", 30_000).concat();
        assert!(bimodal.iter().all(|length| (200..=800).contains(length) || (7_500..=12_000).contains(length)));
        assert!(bimodal.iter().any(|&length| length > 7_500));
    }
}
