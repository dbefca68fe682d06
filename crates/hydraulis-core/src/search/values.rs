//! Values of strategies at the dual prices of the bound.
//!
//! By a time, no assignment puts more on a replica than its value, and every assignment of the batch costs at least the
//! batch's price. So a strategy whose replicas have together a lower value than that price cannot end by that time: it
//! is ruled out without a linear program of its own.

use crate::bound::{AnyClass, Branches};
use crate::spec::{Scheme, Strategy};
use crate::units::{Millis, count};

/// Values that just reach the price may seem less by this share.
const ROUNDING: f64 = 1e-9;

/// The price of the batch and the values of replicas by some time.
pub(super) struct Values {
    /// The least total price of the batch.
    pub(super) batch_price: f64,
    /// The value of a replica of each class.
    pub(super) of_replica: Vec<f64>,
    /// The schemes in order, each with the greatest value of its classes.
    of_scheme: Vec<(Scheme, f64)>,
}

impl Values {
    /// The values by `end` of replicas of these classes, for which the branches were made; none if some sequence is
    /// admitted by no class.
    pub(super) fn by(end: Millis, branches: &Branches, classes: &[AnyClass]) -> Option<Values> {
        let (batch_price, of_replica) = branches.values(end)?;
        let schemes = classes.iter().map(|class| class.capacity.cost().scheme());
        let mut of_scheme: Vec<(Scheme, f64)> = schemes.zip(of_replica.iter().copied()).collect();
        of_scheme.sort_by(|one, other| one.0.cmp(&other.0).then(other.1.total_cmp(&one.1)));
        of_scheme.dedup_by_key(|(scheme, _)| *scheme);
        Some(Values { batch_price, of_replica, of_scheme })
    }

    /// The greatest value of the strategy's replicas together; replicas of other schemes have none.
    pub(super) fn of_strategy(&self, strategy: &Strategy) -> f64 {
        let of_run = |run: &[Scheme]| {
            let place = self.of_scheme.binary_search_by(|(scheme, _)| scheme.cmp(&run[0]));
            place.map_or(0.0, |place| count(run.len()) * self.of_scheme[place].1)
        };
        strategy.schemes().chunk_by(|one, other| one == other).map(of_run).sum()
    }

    /// The value of these numbers of replicas of each class together.
    pub(super) fn of_counts(&self, counts: &[usize]) -> f64 {
        self.of_replica.iter().zip(counts).map(|(value, &number)| value * count(number)).sum()
    }

    /// These strategies without those that are ruled out, the most valuable first.
    pub(super) fn promising(&self, strategies: impl Iterator<Item = Strategy>) -> Vec<Strategy> {
        let valued = strategies.map(|strategy| (self.of_strategy(&strategy), strategy));
        let mut promising: Vec<(f64, Strategy)> = valued.filter(|(value, _)| *value >= self.batch_price).collect();
        promising.sort_by(|one, other| other.0.total_cmp(&one.0).then_with(|| one.1.cmp(&other.1)));
        promising.into_iter().map(|(_, strategy)| strategy).collect()
    }

    /// The classes that a plan may have which ends by that time on `gpus` ranks, in ascending order.
    ///
    /// The replicas of such a plan have together at least the value of the batch's price. With one replica of a class they
    /// have at most its value and that of the other ranks at the greatest value of a rank: where even that is less, no such
    /// plan has a replica of the class.
    pub(super) fn possible(&self, classes: &[AnyClass], gpus: u32) -> Vec<usize> {
        let ranks = |class: usize| count(classes[class].capacity.cost().scheme().ranks());
        let per_rank = (0..classes.len()).map(|class| self.of_replica[class] / ranks(class)).fold(0.0, f64::max);
        let with_one = |class: usize| self.of_replica[class] + per_rank * (f64::from(gpus) - ranks(class)).max(0.0);
        (0..classes.len()).filter(|&class| with_one(class) >= self.batch_price * (1.0 - ROUNDING)).collect()
    }

    /// The classes of the greatest value per rank, at most `most`, and at most `wide` more of those that `admits`
    /// names, in ascending order.
    pub(super) fn leading(
        &self,
        classes: &[AnyClass],
        [most, wide]: [usize; 2],
        admits: impl Fn(&AnyClass) -> bool,
    ) -> Vec<usize> {
        let per_rank =
            |class: &usize| self.of_replica[*class] / count(classes[*class].capacity.cost().scheme().ranks());
        let mut leading: Vec<usize> = (0..classes.len()).collect();
        leading.sort_by(|one, other| per_rank(other).total_cmp(&per_rank(one)).then(one.cmp(other)));
        let rest = leading.split_off(most.min(leading.len()));
        leading.extend(rest.into_iter().filter(|&class| admits(&classes[class])).take(wide));
        leading.sort_unstable();
        leading
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::bound::{Bounder, ProofLimit};
    use crate::cancellation::NEVER_CANCELLED;
    use crate::capacity::Capacities;
    use crate::construct::{mixes, usable_schemes};
    use crate::cost::{CostModel, preset};
    use crate::search::task::Task;
    use crate::spec::{Cluster, SearchBudget};

    #[test]
    fn no_strategy_that_is_ruled_out_ends_in_time() {
        let cost = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(32, 8).unwrap());
        let (schemes, listed, budget) = (usable_schemes(&cost), mixes(&cost), SearchBudget::ONLINE);
        let capacities = Capacities::new(cost, budget.capacity);
        let classes: Vec<AnyClass> =
            schemes.iter().map(|&scheme| AnyClass { capacity: capacities.scheme(scheme).unwrap(), level: 0 }).collect();
        let long: Vec<i64> = [19_000, 12_000].into_iter().chain((0..90).map(|i| 200 + 13 * i)).collect();
        let (mut ruled_out, mut kept, mut left_out, mut in_time) = (0, 0, 0, 0);
        for lengths in [long, (1..60).map(|i| 120 * i).collect()] {
            let batch = Batch::new(&lengths, None).unwrap();
            let bounder = Bounder::new(&batch, budget.bound);
            let task = Task::new(&batch, std::slice::from_ref(&capacities), None, &budget, NEVER_CANCELLED);
            let branches = bounder.of_any(&classes, &[32], Millis::ZERO).unwrap();
            let end = branches.least() * 1.2;
            let values = Values::by(end, &branches, &classes).unwrap();
            let promising = values.promising(listed.iter().cloned());
            for strategy in listed.iter().filter(|strategy| task.admits(strategy)) {
                let ms = task.draft(strategy).unwrap().iteration_ms;
                let is_promising = promising.contains(strategy);
                assert!(is_promising || ms >= end, "{strategy}: {ms:?} {end:?}");
                *(if is_promising { &mut kept } else { &mut ruled_out }) += 1;
            }
            let value = |strategy: &Strategy| values.of_strategy(strategy);
            assert!(promising.windows(2).all(|pair| value(&pair[0]) >= value(&pair[1])));
            for share in [1.001, 1.01, 1.03, 1.1, 1.3] {
                let end = branches.least() * share;
                let possible = Values::by(end, &branches, &classes).unwrap().possible(&classes, 32);
                left_out += classes.len() - possible.len();
                let is_possible = |scheme: &Scheme| possible.iter().any(|&class| schemes[class] == *scheme);
                for strategy in listed.iter().filter(|strategy| task.admits(strategy)) {
                    let ms = task.draft(strategy).unwrap().iteration_ms;
                    in_time += usize::from(ms < end);
                    assert!(ms >= end || strategy.schemes().iter().all(is_possible), "{strategy}: {ms:?} {end:?}");
                }
            }
            for strategy in listed.iter().filter(|strategy| task.admits(strategy)) {
                let counts: Vec<usize> = schemes
                    .iter()
                    .map(|scheme| strategy.schemes().iter().filter(|other| *other == scheme).count())
                    .collect();
                assert!((values.of_counts(&counts) / value(strategy) - 1.0).abs() < 1e-9);
                let bound = ProofLimit { until: Millis::INFINITY, dual_solves: 1 };
                let bound = bounder.of_strategy(&capacities, strategy, bound).unwrap().ms;
                for (share, is_expected) in [(0.98, Some(true)), (1.02, Some(false))] {
                    assert_eq!(bounder.rules_out(&capacities, strategy, bound * share), is_expected, "{strategy}");
                }
            }
        }
        assert!(ruled_out > 20 && kept > 0, "{ruled_out} {kept}");
        assert!(left_out > 0 && in_time > 5, "{left_out} {in_time}");
    }

    #[test]
    fn schemes_of_shorter_plans_on_unequal_ranks_are_possible() {
        let rates = [1.0; 6].into_iter().chain([0.5; 6]).chain([0.3; 4]).collect();
        let cluster = Cluster::new(16, 8).unwrap().with_rates(rates).unwrap();
        let cost = CostModel::new(preset("llama-7b-a800").unwrap(), cluster);
        let (listed, budget) = (mixes(&cost), SearchBudget::ONLINE);
        let capacities = Capacities::new(cost, budget.capacity);
        let relaxed = capacities.relaxed().iter();
        let classes: Vec<AnyClass> =
            relaxed.map(|class| AnyClass { capacity: &class.capacity, level: class.level }).collect();
        let batch = Batch::new(&(0..200).map(|i| 200 + 13 * i).collect::<Vec<i64>>(), None).unwrap();
        let bounder = Bounder::new(&batch, budget.bound);
        let task = Task::new(&batch, std::slice::from_ref(&capacities), None, &budget, NEVER_CANCELLED);
        let branches = bounder.of_any(&classes, capacities.level_ranks(), Millis::ZERO).unwrap();
        let admitted = listed.iter().filter(|strategy| task.admits(strategy));
        let planned: Vec<(&Strategy, Millis)> =
            admitted.map(|strategy| (strategy, task.draft(strategy).unwrap().iteration_ms)).collect();
        let shortest = planned.iter().map(|(_, ms)| *ms).min().unwrap();
        let (mut left_out, mut in_time) = (0, 0);
        for share in [1.001, 1.02, 1.05, 1.1, 1.2] {
            let end = shortest * share;
            let possible = Values::by(end, &branches, &classes).unwrap().possible(&classes, 16);
            left_out += classes.len() - possible.len();
            for (strategy, _) in planned.iter().filter(|(_, ms)| *ms < end) {
                in_time += 1;
                for replica in capacities.replicas(strategy).unwrap() {
                    let scheme = replica.cost().scheme();
                    let is_possible = possible.iter().any(|&class| classes[class].capacity.cost().scheme() == scheme);
                    assert!(is_possible, "{strategy}: {scheme} {share}");
                }
            }
        }
        assert!(left_out > 0 && in_time > 5, "{left_out} {in_time}");
    }

    #[test]
    fn the_longest_sequence_always_has_a_leading_class() {
        let cost = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap());
        let schemes = usable_schemes(&cost);
        let capacities = Capacities::new(cost, SearchBudget::ONLINE.capacity);
        let classes: Vec<AnyClass> =
            schemes.iter().map(|&scheme| AnyClass { capacity: capacities.scheme(scheme).unwrap(), level: 0 }).collect();
        let lengths: Vec<i64> = [40_000].into_iter().chain((0..900).map(|i| 100 + i)).collect();
        let batch = Batch::new(&lengths, None).unwrap();
        let bounder = Bounder::new(&batch, SearchBudget::ONLINE.bound);
        let branches = bounder.of_any(&classes, &[64], Millis::ZERO).unwrap();
        let values = Values::by(branches.least(), &branches, &classes).unwrap();
        let admits = |class: &AnyClass| class.capacity.cost().admits(crate::Tokens(40_000));
        let few = values.leading(&classes, [3, 1], admits);
        assert!(few.len() <= 4 && few.iter().any(|&class| admits(&classes[class])), "{few:?}");
        assert!(few.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(values.leading(&classes, [99, 1], admits).len(), classes.len());
    }
}
