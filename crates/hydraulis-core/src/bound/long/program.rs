//! Weak duality with whole long sequences: the price of a batch, and the value of all replicas.

use crate::bound::batch_sums::{BatchSums, Load, Price};
use crate::bound::dual_program::ClassLimits;
use crate::bound::long::items::LongSequences;
use crate::bound::long::pattern::{Pattern, ReplicaPrices, best_pattern};
use crate::bound::long::replica::Replica;
use crate::spec::LongBudget;
use crate::units::{Millis, count};

/// Sequences that just fill all replicas cost as much as the replicas' value, up to rounding.
const ROUNDING: f64 = 1e-9;

/// A batch with its long sequences, and the replicas to which it may be assigned; all ranks are of one speed.
#[derive(Clone, Debug)]
pub(in crate::bound) struct LongProgram<'a> {
    pub(in crate::bound) batch: &'a BatchSums,
    pub(in crate::bound) long: &'a LongSequences,
    pub(in crate::bound) classes: Vec<ClassLimits<'a>>,
    pub(in crate::bound) ranks: u32,
    /// Micro-batches counted one by one, empty ones included.
    pub(in crate::bound) counted: usize,
    /// Steps of the search for the prices of a class outside the active part.
    pub(in crate::bound) price_steps: usize,
    /// Indices of the classes that programs over a part of them have, in ascending order; none if programs have all.
    pub(in crate::bound) active: Vec<usize>,
    pub(in crate::bound) budget: LongBudget,
}

/// Dual prices: of work and tokens on each class, and of a sequence of each long group.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LongPrices {
    pub(super) classes: Vec<(f64, f64)>,
    pub(super) long: Vec<f64>,
}

impl LongPrices {
    pub(super) fn of(&self, class: usize) -> ReplicaPrices<'_> {
        let (work, tokens) = self.classes[class];
        ReplicaPrices { work, tokens, long: &self.long }
    }
}

impl LongProgram<'_> {
    /// The capacity of a replica of each class by `end`.
    pub(super) fn replicas_by(&self, end: Millis) -> Vec<Replica> {
        let by = |class| Replica::by(class, end, self.batch.sequences(), self.counted, &self.long.groups);
        self.classes.iter().map(by).collect()
    }

    /// The most valuable pattern of a class that is worth more than `least`.
    pub(super) fn pattern(&self, class: usize, replica: &Replica, prices: &LongPrices, least: f64) -> Pattern {
        self.pattern_at(prices.of(class), replica, least)
    }

    /// The most valuable pattern at these prices that is worth more than `least`.
    pub(super) fn pattern_at(&self, prices: ReplicaPrices, replica: &Replica, least: f64) -> Pattern {
        best_pattern(replica, prices, least, [self.budget.patterns, self.budget.pattern_sequences])
    }

    /// The least total price of the sequences that are not long, and each class's load for it; none if one of them is
    /// admitted by no class.
    pub(super) fn asked_by_others(&self, prices: &LongPrices, replicas: &[Replica]) -> Option<(f64, Vec<Load>)> {
        let lines = self.lines(prices, replicas);
        let mut loads = vec![Load::default(); lines.len()];
        self.long.others.cheapest(&lines, &mut loads).map(|batch_price| (batch_price, loads))
    }

    /// The dual price of a sequence that is not long on each class.
    pub(super) fn lines(&self, prices: &LongPrices, replicas: &[Replica]) -> Vec<Price> {
        let line = |((class, &(work, tokens)), replica): ((&ClassLimits, &(f64, f64)), &Replica)| Price {
            slope: work * class.capacity.cost().quadratic_ms_per_token2(),
            offset: work * class.capacity.cost().linear_ms_per_token() + tokens,
            slot: 0.0,
            large: f64::INFINITY,
            limit: replica.limit,
        };
        self.classes.iter().zip(&prices.classes).zip(replicas).map(line).collect()
    }

    /// Whether some sequence is admitted by no class.
    pub(super) fn is_too_long(&self, replicas: &[Replica]) -> bool {
        let limit = replicas.iter().map(|replica| replica.limit).fold(0.0, f64::max);
        self.long.groups.first().is_some_and(|group| group.length > limit)
    }

    /// Whether these prices prove that no plan ends by the replicas' time.
    pub(super) fn is_impossible(&self, prices: &LongPrices, replicas: &[Replica]) -> bool {
        if self.is_too_long(replicas) {
            return true;
        }
        let Some((others, _)) = self.asked_by_others(prices, replicas) else { return true };
        let of_long = self.long.groups.iter().zip(&prices.long).map(|(group, price)| count(group.number) * price);
        let batch_price = others + of_long.sum::<f64>();
        let value = self.value(prices, replicas);
        batch_price - value > ROUNDING * (batch_price + value)
    }

    /// The greatest value of all replicas: the required ones, and the dearest that the remaining ranks allow, fractions
    /// included.
    fn value(&self, prices: &LongPrices, replicas: &[Replica]) -> f64 {
        let (mut value, mut left) = (0.0, f64::from(self.ranks));
        let mut optional: Vec<(f64, f64)> = Vec::new();
        for (class, (limits, replica)) in self.classes.iter().zip(replicas).enumerate() {
            let own = self.pattern(class, replica, prices, 0.0).value;
            value += own * count(limits.least);
            left -= limits.ranks() * count(limits.least);
            if limits.most > limits.least {
                optional.push((own / limits.ranks(), limits.ranks() * count(limits.most - limits.least)));
            }
        }
        optional.sort_by(|one, other| other.0.total_cmp(&one.0));
        for (per_rank, most) in optional {
            let taken = left.max(0.0).min(most);
            value += per_rank * taken;
            left -= taken;
        }
        value
    }
}
