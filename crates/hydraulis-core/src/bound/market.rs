//! Weak duality: the capacity of replicas by a time, and the batch's demand, at given dual prices.
//!
//! Let a unit of a scheme's work cost `A_k`, a token `B_k`, a micro-batch `V_k` and a slot `R_k`. A sequence is large on a
//! scheme if no replica of it could take two such by `T`: each replica has one slot for one of those. The sequences cost
//! at least `sum over s of min over k of A_k w_k(s) + B_k s + R_k [s is large]`, whatever their assignment. A replica that
//! ends by `T` holds work `U_v` and tokens `S_v` with `v` micro-batches, so its value is at most `R_k + max over v of A_k
//! U_v + B_k S_v - V_k v`. If the sequences cost more than the value of all possible replicas, no plan ends by `T`: weak
//! duality, for any dual prices. The prices decide only how strong the bound is.

use std::ops::RangeInclusive;

use crate::bound::demand::{Demand, Load, Price};
use crate::capacity::{Level, SchemeCapacity};
use crate::spec::BoundBudget;
use crate::units::{Millis, count};

/// Width of the last interval, as a share of the time.
const CLOSE: f64 = 1e-5;

/// Sequences that just fill all replicas cost as much as the replicas' value, up to rounding: this share of the terms,
/// because a price of micro-batches is counted with both signs and nearly cancels.
const ROUNDING: f64 = 1e-9;

/// Replicas of one scheme, and their possible number.
#[derive(Clone, Debug)]
pub(super) struct Offer<'a> {
    pub(super) capacity: &'a SchemeCapacity,
    /// Least number of replicas; they may stay idle.
    pub(super) least: usize,
    /// Greatest number of replicas.
    pub(super) most: usize,
    /// Least number of micro-batches of all replicas together.
    pub(super) least_micro_batches: usize,
    /// Greatest number of micro-batches of all replicas together.
    pub(super) most_micro_batches: usize,
    /// Possible numbers of micro-batches of each replica.
    pub(super) counts: RangeInclusive<usize>,
}

/// The capacity of one replica of an offer by some time.
#[derive(Clone, Debug)]
pub(super) struct Reach {
    pub(super) levels: Vec<Level>,
    /// The longest sequence that is admitted and alone ends by that time.
    pub(super) limit: f64,
    /// Longer sequences are large.
    pub(super) large: f64,
}

/// A batch, and the replicas to which it may be assigned.
#[derive(Clone, Debug)]
pub(super) struct Market<'a> {
    pub(super) demand: &'a Demand,
    pub(super) offers: Vec<Offer<'a>>,
    pub(super) gpus: u32,
    pub(super) budget: BoundBudget,
}

/// The value of replicas, and the sum of the terms without their signs.
#[derive(Clone, Copy, Debug, Default)]
struct Worth {
    total: f64,
    terms: f64,
}

impl Worth {
    fn add(&mut self, term: f64) {
        self.total += term;
        self.terms += term.abs();
    }
}

/// Whether a program counts slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slots {
    Counted,
    Ignored,
}

/// The dual prices on one scheme.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct SchemePrices {
    pub(super) work: f64,
    pub(super) tokens: f64,
    pub(super) micro_batch: f64,
    pub(super) slot: f64,
}

impl<'a> Offer<'a> {
    /// Any number of replicas from `least` to `most`, with any number of micro-batches.
    pub(super) fn new(capacity: &'a SchemeCapacity, least: usize, most: usize) -> Offer<'a> {
        Offer { capacity, least, most, least_micro_batches: 0, most_micro_batches: usize::MAX, counts: 0..=usize::MAX }
    }

    /// The same replicas, split by their number of micro-batches: up to `few`, or more. Each kind may have any number of
    /// replicas.
    pub(super) fn by_count(&self, few: usize) -> Vec<Offer<'a>> {
        [0..=few, few + 1..=usize::MAX].into_iter().map(|counts| Offer { least: 0, counts, ..self.clone() }).collect()
    }

    /// Ranks of a replica.
    pub(super) fn ranks(&self) -> f64 {
        count(self.capacity.cost().scheme().ranks())
    }

    fn reach(&self, end: Millis, sequences: usize, counted: usize) -> Reach {
        if self.most == 0 {
            return Reach { levels: Vec::new(), limit: 0.0, large: 0.0 };
        }
        let cost = self.capacity.cost();
        let most = cost.window().most_micro_batches(sequences);
        let counted = sequences.max(most.min(counted));
        let mut levels = self.capacity.levels(end, counted);
        let beyond = self.beyond(end, counted, most);
        levels.extend(beyond);
        let most_work = levels.iter().map(|level| level.work_ms).fold(0.0, f64::max);
        self.add_many(end, counted, &mut levels);
        levels.retain(|level| self.counts.contains(&level.micro_batches));
        let through: f64 = cost.stage_multipliers().iter().sum();
        // The margins keep the sequence that sets the longest path, and two that just fit, in spite of rounding.
        let alone = end.0 * (1.0 + 1e-9) / through - cost.fixed_ms().0;
        let limit = cost.longest().as_f64().min(self.length_of(alone) * (1.0 + 1e-9));
        Reach { levels, limit, large: self.length_of(0.5 * most_work) * (1.0 + 1e-9) }
    }

    /// With a large least number of micro-batches, even counts that hold less than smaller counts matter.
    fn add_many(&self, end: Millis, most: usize, levels: &mut Vec<Level>) {
        if self.least_micro_batches == 0 {
            return;
        }
        let counts = levels.iter().map(|level| level.micro_batches);
        let known = counts.filter(|&count| count <= most).max().unwrap_or(0);
        let window = self.capacity.cost().window();
        for micro_batches in known + 1..=most {
            let work_ms = self.capacity.work_on_slowest(micro_batches, end);
            if work_ms <= 0.0 {
                break;
            }
            levels.push(Level { micro_batches, work_ms, tokens: window.most_tokens(micro_batches) });
        }
    }

    /// The capacity of more than `counted` and at most `most` micro-batches, some of them empty, if filling the pipeline
    /// cost no time: the fewest and the most micro-batches, so that no count in between has a greater value.
    fn beyond(&self, end: Millis, counted: usize, most: usize) -> Vec<Level> {
        let work = self.capacity.work_on_slowest(counted + 1, end);
        if counted >= most || work <= 0.0 {
            return Vec::new();
        }
        let cost = self.capacity.cost();
        let (room, linear) = (cost.window().most_tokens(most), cost.linear_ms_per_token());
        let tokens = if linear > 0.0 { room.min(work / linear) } else { room };
        [counted + 1, most].map(|micro_batches| Level { micro_batches, work_ms: work, tokens }).to_vec()
    }

    /// The length of the sequence that takes `work`.
    fn length_of(&self, work: f64) -> f64 {
        let cost = self.capacity.cost();
        let (a, b) = (cost.quadratic_ms_per_token2(), cost.linear_ms_per_token());
        if work <= 0.0 { 0.0 } else { 2.0 * work / (b + (b * b + 4.0 * a * work).sqrt()) }
    }
}

impl Market<'_> {
    /// The capacity of a replica of each offer by `end`.
    pub(super) fn reaches(&self, end: Millis) -> Vec<Reach> {
        let (sequences, counted) = (self.demand.sequences(), self.budget.counted_micro_batches);
        self.offers.iter().map(|offer| offer.reach(end, sequences, counted)).collect()
    }

    /// The dual price of a sequence on each offer.
    pub(super) fn prices(&self, prices: &[SchemePrices], reaches: &[Reach]) -> Vec<Price> {
        let line = |((offer, price), reach): ((&Offer, &SchemePrices), &Reach)| Price {
            slope: price.work * offer.capacity.cost().quadratic_ms_per_token2(),
            offset: price.work * offer.capacity.cost().linear_ms_per_token() + price.tokens,
            slot: price.slot,
            large: reach.large,
            limit: reach.limit,
        };
        self.offers.iter().zip(prices).zip(reaches).map(line).collect()
    }

    /// The least total price of the sequences, and each scheme's load for it; none if some sequence is admitted by no
    /// offer.
    pub(super) fn asked(&self, prices: &[SchemePrices], reaches: &[Reach]) -> Option<(f64, Vec<Load>)> {
        let lines = self.prices(prices, reaches);
        let mut loads = vec![Load::default(); lines.len()];
        self.demand.cheapest(&lines, &mut loads).map(|asked| (asked, loads))
    }

    /// The latest time, at or after `from` and up to about `until`, that these prices prove impossible; none if they do
    /// not prove `from` impossible.
    pub(super) fn impossible(&self, prices: &[SchemePrices], from: Millis, until: Millis) -> Option<Millis> {
        if !self.is_impossible(prices, from) {
            return None;
        }
        let (mut impossible, mut step) = (from, 0.01);
        let mut possible = loop {
            let next = impossible * (1.0 + step);
            if !self.is_impossible(prices, next) {
                break next;
            }
            (impossible, step) = (next, 2.0 * step);
            if impossible >= until {
                return Some(impossible);
            }
        };
        for _ in 0..self.budget.halvings {
            if possible.0 - impossible.0 <= CLOSE * impossible.0 {
                break;
            }
            let middle = Millis(0.5 * (impossible.0 + possible.0));
            *(if self.is_impossible(prices, middle) { &mut impossible } else { &mut possible }) = middle;
        }
        Some(impossible)
    }

    fn is_impossible(&self, prices: &[SchemePrices], end: Millis) -> bool {
        let reaches = self.reaches(end);
        let Some((asked, _)) = self.asked(prices, &reaches) else { return true };
        let worth = self.worth(prices, &reaches);
        asked - worth.total > ROUNDING * (asked + worth.terms)
    }

    /// The greatest value of all replicas: the required ones, and the dearest that the remaining ranks allow, fractions
    /// included.
    fn worth(&self, prices: &[SchemePrices], reaches: &[Reach]) -> Worth {
        let (mut worth, mut left) = (Worth::default(), f64::from(self.gpus));
        let mut optional: Vec<(f64, f64, f64)> = Vec::new();
        for ((offer, price), reach) in self.offers.iter().zip(prices).zip(reaches) {
            let replica = price.slot + reach.levels.iter().map(|level| price.worth(level)).fold(0.0, f64::max);
            let micro_batches =
                if price.micro_batch > 0.0 { offer.most_micro_batches } else { offer.least_micro_batches };
            worth.add(replica * count(offer.least));
            worth.add(price.micro_batch * count(micro_batches));
            left -= offer.ranks() * count(offer.least);
            optional.push((replica / offer.ranks(), offer.ranks(), count(offer.most - offer.least)));
        }
        optional.sort_by(|one, other| other.0.total_cmp(&one.0));
        for (per_rank, ranks, most) in optional {
            let taken = left.max(0.0).min(ranks * most);
            worth.add(per_rank * taken);
            left -= taken;
        }
        worth
    }
}

impl SchemePrices {
    /// The value of a replica's work and tokens with that number of micro-batches.
    pub(super) fn worth(&self, level: &Level) -> f64 {
        self.work * level.work_ms + self.tokens * level.tokens - self.micro_batch * count(level.micro_batches)
    }
}
