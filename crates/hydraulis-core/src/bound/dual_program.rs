//! Weak duality: the capacity of replicas by a time, and the batch's load, at given dual prices.
//!
//! Let a unit of a class's work cost `A_k`, a token `B_k`, a micro-batch `V_k` and a slot `R_k`. A sequence is large
//! on a class if no replica of it could take two such by `T`: each replica has one slot for one of those. The
//! sequences cost at least `sum over s of min over k of A_k w_k(s) + B_k s + R_k [s is large]`, whatever their
//! assignment. A replica that ends by `T` holds work `U_v` and tokens `S_v` with `v` micro-batches, so its value is at
//! most `R_k + max over v of A_k U_v + B_k S_v - V_k v`. If the sequences cost more than the value of all possible
//! replicas, no plan ends by `T`: weak duality, for any dual prices. The prices decide only how strong the bound is.

use std::ops::RangeInclusive;

use crate::bound::batch_sums::{BatchSums, Load, Price};
use crate::capacity::{ClassCapacity, Level};
use crate::spec::BoundBudget;
use crate::units::{Millis, count};

/// Sequences that just fill all replicas cost as much as the replicas' value, up to rounding: this share of the terms,
/// because a price of micro-batches is counted with both signs and nearly cancels.
const ROUNDING: f64 = 1e-9;

/// Replicas of one class, and their possible number.
#[derive(Clone, Debug)]
pub(super) struct ClassLimits<'a> {
    pub(super) capacity: &'a ClassCapacity,
    /// The level of its ranks: they are of this speed or faster.
    pub(super) level: usize,
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

/// The capacity of one replica of a class by some time.
#[derive(Clone, Debug)]
pub(super) struct ReplicaCapacity {
    pub(super) levels: Vec<Level>,
    /// The longest sequence that is admitted and alone ends by that time.
    pub(super) limit: f64,
    /// Longer sequences are large.
    pub(super) large: f64,
}

/// A batch, and the replicas to which it may be assigned.
#[derive(Clone, Debug)]
pub(super) struct DualProgram<'a> {
    pub(super) batch: &'a BatchSums,
    pub(super) classes: Vec<ClassLimits<'a>>,
    /// Number of ranks of each level of speed and of faster ones, the slowest level first. A replica's ranks count at
    /// its level and at every slower one.
    pub(super) ranks: Vec<u32>,
    /// Indices of the classes that programs over a part of them have, in ascending order; none before the first one.
    pub(super) active: Vec<usize>,
    pub(super) budget: BoundBudget,
}

/// The value of replicas, and the sum of the terms without their signs.
#[derive(Clone, Copy, Debug, Default)]
struct Value {
    total: f64,
    terms: f64,
}

impl Value {
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

/// The dual prices on one class.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ClassPrices {
    pub(super) work: f64,
    pub(super) tokens: f64,
    pub(super) micro_batch: f64,
    pub(super) slot: f64,
}

impl<'a> ClassLimits<'a> {
    /// Any number of replicas from `least` to `most`, with any number of micro-batches.
    pub(super) fn new(capacity: &'a ClassCapacity, least: usize, most: usize) -> ClassLimits<'a> {
        ClassLimits {
            capacity,
            level: 0,
            least,
            most,
            least_micro_batches: 0,
            most_micro_batches: usize::MAX,
            counts: 0..=usize::MAX,
        }
    }

    /// The same replicas, split by their number of micro-batches: up to `few`, or more. Each kind may have any number
    /// of replicas.
    pub(super) fn by_count(&self, few: usize) -> Vec<ClassLimits<'a>> {
        [0..=few, few + 1..=usize::MAX]
            .into_iter()
            .map(|counts| ClassLimits { least: 0, counts, ..self.clone() })
            .collect()
    }

    /// Ranks of a replica.
    pub(super) fn ranks(&self) -> f64 {
        count(self.capacity.cost().scheme().ranks())
    }

    pub(super) fn capacity_by(&self, end: Millis, sequences: usize, counted: usize) -> ReplicaCapacity {
        if self.most == 0 {
            return ReplicaCapacity { levels: Vec::new(), limit: 0.0, large: 0.0 };
        }
        let cost = self.capacity.cost();
        let most = cost.in_flight_limit().most_micro_batches(sequences);
        let counted = sequences.max(most.min(counted));
        let mut levels = self.capacity.levels(end, counted);
        let beyond = self.beyond(end, counted, most);
        levels.extend(beyond);
        let most_work = levels.iter().map(|level| level.work_ms).fold(0.0, f64::max);
        self.add_many(end, counted, &mut levels);
        levels.retain(|level| self.counts.contains(&level.micro_batches));
        let limit = self.longest_by(end);
        ReplicaCapacity { levels, limit, large: self.length_of(0.5 * most_work) * (1.0 + 1e-9) }
    }

    /// The longest sequence that a replica admits and that alone ends by `end`.
    pub(super) fn longest_by(&self, end: Millis) -> f64 {
        let cost = self.capacity.cost();
        let through: f64 = cost.stage_multipliers().iter().sum();
        // The margins keep the sequence that sets the longest path, and two that just fit, in spite of rounding.
        let alone = end.0 * (1.0 + 1e-9) / through - cost.fixed_ms().0;
        cost.longest().as_f64().min(self.length_of(alone) * (1.0 + 1e-9))
    }

    /// With a large least number of micro-batches, even counts that hold less than smaller counts matter.
    fn add_many(&self, end: Millis, most: usize, levels: &mut Vec<Level>) {
        if self.least_micro_batches == 0 {
            return;
        }
        let counts = levels.iter().map(|level| level.micro_batches);
        let known = counts.filter(|&count| count <= most).max().unwrap_or(0);
        let limit = self.capacity.cost().in_flight_limit();
        for micro_batches in known + 1..=most {
            let work_ms = self.capacity.work_on_slowest(micro_batches, end);
            if work_ms <= 0.0 {
                break;
            }
            levels.push(Level { micro_batches, work_ms, tokens: limit.most_tokens(micro_batches) });
        }
    }

    /// The capacity of more than `counted` and at most `most` micro-batches, some of them empty, if filling the
    /// pipeline cost no time: the fewest and the most micro-batches, so that no count in between has a greater value.
    fn beyond(&self, end: Millis, counted: usize, most: usize) -> Vec<Level> {
        let work = self.capacity.work_on_slowest(counted + 1, end);
        if counted >= most || work <= 0.0 {
            return Vec::new();
        }
        let cost = self.capacity.cost();
        let (room, linear) = (cost.in_flight_limit().most_tokens(most), cost.linear_ms_per_token());
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

impl DualProgram<'_> {
    /// The capacity of a replica of each class by `end`.
    pub(super) fn capacities_by(&self, end: Millis) -> Vec<ReplicaCapacity> {
        let (sequences, counted) = (self.batch.sequences(), self.budget.counted_micro_batches);
        self.classes.iter().map(|class| class.capacity_by(end, sequences, counted)).collect()
    }

    /// The dual price of a sequence on each class.
    pub(super) fn prices(&self, prices: &[ClassPrices], capacities: &[ReplicaCapacity]) -> Vec<Price> {
        let line = |((class, price), by_end): ((&ClassLimits, &ClassPrices), &ReplicaCapacity)| Price {
            slope: price.work * class.capacity.cost().quadratic_ms_per_token2(),
            offset: price.work * class.capacity.cost().linear_ms_per_token() + price.tokens,
            slot: price.slot,
            large: by_end.large,
            limit: by_end.limit,
        };
        self.classes.iter().zip(prices).zip(capacities).map(line).collect()
    }

    /// The least total price of the sequences, and each class's load for it; none if some sequence is admitted by no
    /// class.
    pub(super) fn batch_price(
        &self,
        prices: &[ClassPrices],
        capacities: &[ReplicaCapacity],
    ) -> Option<(f64, Vec<Load>)> {
        let lines = self.prices(prices, capacities);
        let mut loads = vec![Load::default(); lines.len()];
        self.batch.cheapest(&lines, &mut loads).map(|batch_price| (batch_price, loads))
    }

    /// The latest time, at or after `from` and up to about `until`, that these prices prove impossible, with the prices
    /// that do; none if they do not prove `from` impossible. Classes outside the active part get other prices there.
    pub(super) fn impossible(
        &self,
        prices: &[ClassPrices],
        from: Millis,
        until: Millis,
    ) -> Option<(Millis, Vec<ClassPrices>)> {
        if !self.is_impossible(prices, from) {
            return None;
        }
        if self.active.is_empty() {
            return Some((self.latest(prices, from, until), prices.to_vec()));
        }
        let by_active = self.impossible_by_active(prices, from, until);
        Some(by_active.unwrap_or_else(|| (from, prices.to_vec())))
    }

    /// The latest time up to about `until` that these prices prove impossible; `from` is such a time.
    pub(super) fn latest(&self, prices: &[ClassPrices], from: Millis, until: Millis) -> Millis {
        let excess = |end: Millis| self.excess(prices, &self.capacities_by(end));
        let (mut low, mut step) = ((from, excess(from)), self.budget.interval);
        let mut high = loop {
            let next = low.0 * (1.0 + step);
            let found = (next, excess(next));
            if found.1 <= 0.0 {
                break found;
            }
            (low, step) = (found, 2.0 * step);
            if next >= until {
                return next;
            }
        };
        // The excess is nearly linear in the time: ends on both sides of the chord's zero mostly close the interval.
        let mut side = -0.5;
        for halving in 1..=self.budget.halvings {
            let (width, close) = (high.0.0 - low.0.0, self.budget.halved_to * low.0.0);
            if width <= close {
                break;
            }
            let zero = width * low.1 / (low.1 - high.1) + side * close;
            let is_within = zero > 0.0 && zero < width && halving % 4 != 0;
            let middle = Millis(low.0.0 + if is_within { zero } else { 0.5 * width });
            let found = (middle, excess(middle));
            side = if found.1 > 0.0 { 0.5 } else { -0.5 };
            *(if found.1 > 0.0 { &mut low } else { &mut high }) = found;
        }
        low.0
    }

    pub(super) fn is_impossible(&self, prices: &[ClassPrices], end: Millis) -> bool {
        self.is_impossible_with(prices, &self.capacities_by(end))
    }

    /// Whether these prices prove impossible the time by which replicas have these capacities.
    pub(super) fn is_impossible_with(&self, prices: &[ClassPrices], capacities: &[ReplicaCapacity]) -> bool {
        self.excess(prices, capacities) > 0.0
    }

    /// By how much the batch costs more than the value of all replicas, beyond rounding; infinite if some sequence is
    /// admitted by no class.
    fn excess(&self, prices: &[ClassPrices], capacities: &[ReplicaCapacity]) -> f64 {
        let Some((batch_price, _)) = self.batch_price(prices, capacities) else { return f64::INFINITY };
        let value = self.value(prices, capacities);
        batch_price - value.total - ROUNDING * (batch_price + value.terms)
    }

    /// The greatest value of all replicas: the required ones, and the dearest that the remaining ranks allow, fractions
    /// included.
    fn value(&self, prices: &[ClassPrices], capacities: &[ReplicaCapacity]) -> Value {
        let mut value = Value::default();
        let mut left: Vec<f64> = self.ranks.iter().copied().map(f64::from).collect();
        let mut optional: Vec<(f64, &ClassLimits)> = Vec::new();
        for ((class, price), by_end) in self.classes.iter().zip(prices).zip(capacities) {
            let replica = price.of_replica(by_end);
            let micro_batches =
                if price.micro_batch > 0.0 { class.most_micro_batches } else { class.least_micro_batches };
            value.add(replica * count(class.least));
            value.add(price.micro_batch * count(micro_batches));
            take(&mut left, class, class.ranks() * count(class.least));
            if class.most > class.least && replica > 0.0 {
                optional.push((replica / class.ranks(), class));
            }
        }
        // Ranks at a speed include the faster ones: such nested limits are filled best by the dearest class first. All
        // ranks count at the slowest level, and mostly one class takes them: this is the innermost loop.
        while left[0] > 0.0 {
            let dearest = (0..optional.len()).max_by(|&one, &other| optional[one].0.total_cmp(&optional[other].0));
            let Some((per_rank, class)) = dearest.map(|place| optional.swap_remove(place)) else { break };
            let free = left[..=class.level].iter().copied().fold(f64::INFINITY, f64::min);
            let taken = free.max(0.0).min(class.ranks() * count(class.most - class.least));
            value.add(per_rank * taken);
            take(&mut left, class, taken);
        }
        value
    }
}

/// Takes ranks of a class from those left at its level and at every slower one.
fn take(left: &mut [f64], class: &ClassLimits, ranks: f64) {
    left[..=class.level].iter_mut().for_each(|left| *left -= ranks);
}

impl ClassPrices {
    /// The greatest value of a replica.
    pub(super) fn of_replica(&self, by_end: &ReplicaCapacity) -> f64 {
        self.slot + by_end.levels.iter().map(|level| self.value(level)).fold(0.0, f64::max)
    }

    /// The value of a replica's work and tokens with that number of micro-batches.
    pub(super) fn value(&self, level: &Level) -> f64 {
        self.work * level.work_ms + self.tokens * level.tokens - self.micro_batch * count(level.micro_batches)
    }
}
