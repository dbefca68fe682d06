//! Programs over the classes that matter.
//!
//! Of many schemes most are in no solution, and a program with rows for all of them takes the third power of their
//! number. So a program has a part of the classes, at first those that serve some length in the least time of their
//! ranks. Each other class gets the prices at which its replicas are worth least while no sequence costs less on it
//! than on the classes of the program. If a replica is then worth more than its ranks cost, its class joins the
//! program, which is solved again (delayed generation of rows and columns, Dantzig and Wolfe 1960).
//!
//! The proof does not rest on this choice: it counts every class at its prices, and any prices prove a bound.

use crate::bound::batch_sums::least_price;
use crate::bound::dual_program::{ClassLimits, ClassPrices, DualProgram, ReplicaCapacity, Slots};
use crate::bound::relaxation::{Relaxation, Solution};
use crate::units::{Millis, count};

/// The share of a rank's price by which a rank of a class may have a greater value before the class joins.
pub(super) const BETTER: f64 = 1e-6;

/// Solves the program at `end`. With many classes `dual.active` is the part of them that it has, and grows.
pub(super) fn solve(dual: &mut DualProgram, end: Millis, slots: Slots) -> (Solution, Vec<ReplicaCapacity>) {
    let capacities = dual.capacities_by(end);
    if !dual.is_divided() {
        let solution = Relaxation::new(dual, capacities.clone(), slots).solve();
        return (solution, capacities);
    }
    dual.activate(&capacities);
    let mut rounds = dual.budget.class_rounds;
    loop {
        let (solution, dearer) = solve_part(dual, &capacities, slots);
        rounds = rounds.saturating_sub(1);
        if dearer.is_empty() || rounds == 0 {
            return (solution, capacities);
        }
        dual.active.extend(dearer);
        dual.active.sort_unstable();
    }
}

/// The solution over the active classes with prices for all, and other classes whose replicas are worth more than their
/// ranks cost.
fn solve_part(dual: &DualProgram, capacities: &[ReplicaCapacity], slots: Slots) -> (Solution, Vec<usize>) {
    let part = dual.part();
    let of_part = dual.active.iter().map(|&class| capacities[class].clone()).collect();
    let found = Relaxation::new(&part, of_part, slots).solve();
    let mut used = vec![(0.0, 0.0); dual.classes.len()];
    dual.active.iter().zip(&found.used).for_each(|(&class, own)| used[class] = *own);
    let prices = dual.with_least_values(&found.prices, capacities);
    let per_rank = |class: usize| prices[class].of_replica(&capacities[class]) / dual.classes[class].ranks();
    let above = |class: usize| per_rank(class) - found.per_rank[dual.classes[class].level] * (1.0 + BETTER);
    let others = (0..dual.classes.len()).filter(|class| dual.active.binary_search(class).is_err());
    let mut dearer: Vec<(f64, usize)> =
        others.map(|class| (above(class), class)).filter(|(above, _)| *above > 0.0).collect();
    dearer.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
    dearer.truncate(dual.budget.joining_classes);
    (Solution { prices, used, per_rank: found.per_rank }, dearer.into_iter().map(|(_, class)| class).collect())
}

/// The prices of a class at which a replica is worth least, while each of these lengths costs at least the stated
/// price.
///
/// For a price of work, the price of tokens is the least that is enough; the value is convex in the price of work.
pub(super) fn least_value(
    class: &ClassLimits,
    by_end: &ReplicaCapacity,
    lengths: &[(f64, f64)],
    steps: usize,
) -> ClassPrices {
    let cost = class.capacity.cost();
    let (quadratic, linear) = (cost.quadratic_ms_per_token2(), cost.linear_ms_per_token());
    let lacking = |work: f64| {
        let lacks = |&(length, price): &(f64, f64)| price / length - work * (quadratic * length + linear);
        lengths.iter().map(lacks).fold(0.0, f64::max)
    };
    let at = |work: f64| ClassPrices { work, tokens: lacking(work), ..ClassPrices::default() };
    let value = |work: f64| at(work).of_replica(by_end);
    let enough = |&(length, price): &(f64, f64)| price / length / (quadratic * length + linear);
    // The ratio of consecutive intervals of a golden-section search.
    let golden = 0.5 * (5.0_f64.sqrt() - 1.0);
    let (mut low, mut high) = (0.0, lengths.iter().map(enough).fold(0.0, f64::max));
    let mut inner = [high - golden * (high - low), low + golden * (high - low)];
    let mut values = inner.map(value);
    for _ in 0..steps {
        if values[0] <= values[1] {
            high = inner[1];
            (inner[1], values[1]) = (inner[0], values[0]);
            inner[0] = high - golden * (high - low);
            values[0] = value(inner[0]);
        } else {
            low = inner[0];
            (inner[0], values[0]) = (inner[1], values[1]);
            inner[1] = low + golden * (high - low);
            values[1] = value(inner[1]);
        }
    }
    let candidates = [0.0, low, inner[0], inner[1], high];
    let best = candidates.into_iter().min_by(|&one, &other| value(one).total_cmp(&value(other)));
    at(best.unwrap_or(0.0))
}

impl<'a> DualProgram<'a> {
    /// Whether programs have a part of the classes: there are many.
    fn is_divided(&self) -> bool {
        self.classes.len() > self.budget.whole_classes
    }

    /// The program over the active classes.
    pub(super) fn part(&self) -> DualProgram<'a> {
        let classes = self.active.iter().map(|&class| self.classes[class].clone()).collect();
        DualProgram { batch: self.batch, classes, ranks: self.ranks.clone(), active: Vec::new(), budget: self.budget }
    }

    /// These prices of the active classes, with prices of all others at which their replicas are worth least.
    fn with_least_values(&self, of_active: &[ClassPrices], capacities: &[ReplicaCapacity]) -> Vec<ClassPrices> {
        let part = self.part();
        let of_part: Vec<ReplicaCapacity> = self.active.iter().map(|&class| capacities[class].clone()).collect();
        let lines = part.prices(of_active, &of_part);
        let corners = self.batch.corners(&lines);
        let priced = |class: usize| {
            if let Ok(place) = self.active.binary_search(&class) {
                return of_active[place];
            }
            let by_end = &capacities[class];
            let last = self.batch.at_most(by_end.limit);
            let at_limit = last.and_then(|length| Some((length, least_price(length, &lines)?)));
            let admitted = corners.iter().copied().filter(|(length, _)| *length <= by_end.limit);
            let lengths: Vec<(f64, f64)> = admitted.chain(at_limit).collect();
            least_value(&self.classes[class], by_end, &lengths, self.budget.price_steps)
        };
        (0..self.classes.len()).map(priced).collect()
    }

    /// The latest time found, after `from` and up to about `until`, that the prices of the active classes prove
    /// impossible together with some prices of the others; none if there is none.
    pub(super) fn impossible_by_active(
        &self,
        prices: &[ClassPrices],
        from: Millis,
        until: Millis,
    ) -> Option<(Millis, Vec<ClassPrices>)> {
        let of_active: Vec<ClassPrices> = self.active.iter().map(|&class| prices[class]).collect();
        // Fewer classes hold less, so no later time is impossible for all.
        let mut late = self.part().latest(&of_active, from, until);
        for _ in 0..self.budget.price_times {
            let priced = self.with_least_values(&of_active, &self.capacities_by(late));
            if self.is_impossible(&priced, late) {
                return Some((late, priced));
            }
            late = Millis(0.5 * (from.0 + late.0));
        }
        None
    }

    /// Makes active: classes with limits of their own, and if nothing is active yet those of each level that serve some
    /// length in the least time of their ranks. The longest sequence is always served, if a class admits it.
    fn activate(&mut self, capacities: &[ReplicaCapacity]) {
        let longest = self.batch.longest();
        let lengths = if self.active.is_empty() { self.batch.sample(self.budget.sampled_lengths) } else { Vec::new() };
        let mut active = self.active.clone();
        active.extend((0..self.classes.len()).filter(|&class| self.has_limits(class)));
        for level in 0..self.ranks.len() {
            active.extend(lengths.iter().filter_map(|&length| self.least_rank_time(length, level, capacities)));
        }
        if !active.iter().any(|&class| capacities[class].limit >= longest) {
            active.extend((0..self.ranks.len()).filter_map(|level| self.least_rank_time(longest, level, capacities)));
        }
        active.sort_unstable();
        active.dedup();
        self.active = active;
    }

    fn has_limits(&self, class: usize) -> bool {
        let limits = &self.classes[class];
        let most_by_ranks = f64::from(self.ranks[limits.level]) / limits.ranks();
        let counts = (limits.least_micro_batches, limits.most_micro_batches);
        limits.least > 0 || count(limits.most) + 1.0 <= most_by_ranks || counts != (0, usize::MAX)
    }

    /// The class of this level on which sequences of this length take the least share of all replicas' ranks.
    fn least_rank_time(&self, length: f64, level: usize, capacities: &[ReplicaCapacity]) -> Option<usize> {
        let share = |class: usize| {
            let (limits, cost) = (&self.classes[class], self.classes[class].capacity.cost());
            let work = (cost.quadratic_ms_per_token2() * length + cost.linear_ms_per_token()) * length;
            let part = |level: &crate::capacity::Level| (work / level.work_ms).max(length / level.tokens);
            let least = capacities[class].levels.iter().map(part).fold(f64::INFINITY, f64::min);
            limits.ranks() * least
        };
        let of_level = (0..self.classes.len()).filter(|&class| self.classes[class].level == level);
        let admitting = of_level.filter(|&class| capacities[class].limit >= length);
        admitting.min_by(|&one, &other| share(one).total_cmp(&share(other)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::bound::{AnyClass, Bounder};
    use crate::capacity::Capacities;
    use crate::construct::usable_schemes;
    use crate::cost::{CostModel, CostProfile, Efficiency, device, preset};
    use crate::spec::{BoundBudget, CapacityBudget, CheckpointingKind, Cluster};

    /// The capacities of a profile with many schemes.
    fn rich() -> Capacities {
        rich_on(Cluster::new(16, 8).unwrap())
    }

    fn rich_on(cluster: Cluster) -> Capacities {
        let model = preset("llama-7b-a800").unwrap().model.unwrap();
        let kinds = [CheckpointingKind::None, CheckpointingKind::Full];
        let on = device("H100").unwrap();
        let efficiency = Efficiency::shipped(&on).unwrap();
        let profile = CostProfile::analytic(&model, &cluster, &on, &kinds, &efficiency).unwrap();
        Capacities::new(CostModel::new(profile, cluster), CapacityBudget::ONLINE)
    }

    #[test]
    fn a_part_of_the_classes_proves_as_much_as_all() {
        let capacities = rich();
        let schemes = usable_schemes(capacities.cost());
        let classes: Vec<AnyClass> =
            schemes.iter().map(|&scheme| AnyClass { capacity: capacities.scheme(scheme).unwrap(), level: 0 }).collect();
        assert!(classes.len() > 2 * BoundBudget::ONLINE.whole_classes, "{}", classes.len());
        let many: Vec<i64> = (0..400).map(|i| 60_000 / (3 + i)).collect();
        let long: Vec<i64> = [30_000, 21_000, 16_000].into_iter().chain((0..60).map(|i| 300 + 17 * i)).collect();
        for lengths in [many, long, vec![2_000; 90]] {
            let batch = Batch::new(&lengths, None).unwrap();
            let proven = |budget: BoundBudget| {
                let bounder = Bounder::new(&batch, budget);
                let branches = bounder.of_any(&classes, &[16], Millis::ZERO).unwrap();
                (branches.least().0, branches.active())
            };
            let (all, _) = proven(BoundBudget { whole_classes: usize::MAX, ..BoundBudget::ONLINE });
            let (part, active) = proven(BoundBudget::ONLINE);
            assert!((part / all - 1.0).abs() < 3e-3, "{part} {all}");
            assert!(active > 0 && active < classes.len() / 2, "{active} of {}", classes.len());
        }
    }

    #[test]
    fn a_part_of_the_classes_proves_as_much_as_all_on_ranks_of_three_speeds() {
        let rates = [1.0; 8].into_iter().chain([0.6; 4]).chain([0.3; 4]).collect();
        let capacities = rich_on(Cluster::new(16, 8).unwrap().with_rates(rates).unwrap());
        let relaxed = capacities.relaxed().iter();
        let classes: Vec<AnyClass> =
            relaxed.map(|class| AnyClass { capacity: &class.capacity, level: class.level }).collect();
        let batch = Batch::new(&(0..400).map(|i| 60_000 / (3 + i)).collect::<Vec<i64>>(), None).unwrap();
        let proven = |budget: BoundBudget| {
            let bounder = Bounder::new(&batch, budget);
            let branches = bounder.of_any(&classes, capacities.level_ranks(), Millis::ZERO).unwrap();
            (branches.least().0, branches.active())
        };
        // All classes at once take more pivots than a search has.
        let (all, _) = proven(BoundBudget { whole_classes: usize::MAX, pivots: 100_000, ..BoundBudget::ONLINE });
        let (part, active) = proven(BoundBudget::ONLINE);
        assert!((part / all - 1.0).abs() < 3e-3, "{part} {all}");
        assert!(active > 0 && active < classes.len() / 2, "{active} of {}", classes.len());
    }

    #[test]
    fn prices_outside_the_part_are_the_least_that_are_enough() {
        let capacities = rich();
        let scheme = usable_schemes(capacities.cost())[3];
        let class = ClassLimits::new(capacities.scheme(scheme).unwrap(), 0, 2);
        let cost = class.capacity.cost();
        let by_end = class.capacity_by(cost.micro_batch_ms([crate::Tokens(6_000)].into_iter()) * 4.0, 100, 48);
        let lengths = [(100.0, 3.0), (1_000.0, 40.0), (4_000.0, 300.0)];
        let prices = least_value(&class, &by_end, &lengths, 40);
        let at = |length: f64, work: f64, tokens: f64| {
            (work * (cost.quadratic_ms_per_token2() * length + cost.linear_ms_per_token()) + tokens) * length
        };
        for (length, price) in lengths {
            assert!(at(length, prices.work, prices.tokens) >= price * (1.0 - 1e-9), "{length}");
        }
        // No prices of a fine grid are enough and worth less.
        let value = prices.of_replica(&by_end);
        for step in 0..200 {
            let work = prices.work * 0.02 * f64::from(step);
            let tokens = lengths.iter().map(|&(length, price)| (price - at(length, work, 0.0)) / length);
            let other = ClassPrices { work, tokens: tokens.fold(0.0, f64::max), ..ClassPrices::default() };
            assert!(other.of_replica(&by_end) >= value * (1.0 - 1e-6), "{work} {}", prices.work);
        }
    }
}
