//! The capacity of a replica of one class.

use std::borrow::Cow;
use std::sync::Arc;

use crate::capacity::CapacityTable;
use crate::capacity::work_table::{Point, WorkTable};
use crate::cost::ClassCost;
use crate::spec::CapacityBudget;
use crate::timing::{Exposure, LatestEnd};
use crate::units::{Millis, Tokens, count};

/// The share of a time by which micro-batches of the least time may exceed it by rounding.
const ROUNDING: f64 = 1e-9;

/// The capacity of a replica by a time, for every number of micro-batches.
#[derive(Clone, Debug)]
pub struct ClassCapacity {
    cost: ClassCost,
    capacities: Arc<CapacityTable>,
    work_table: Arc<WorkTable>,
    budget: CapacityBudget,
    /// Whether the slowest stage alone counts, in place of the pipeline.
    counts_slowest_stage_alone: bool,
    /// The latest end of each stage's micro-batches by the end of their step; none at all if transfers do not count.
    latest: Arc<[LatestEnd]>,
}

/// The capacity of one number of micro-batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    /// Number of micro-batches.
    pub micro_batches: usize,
    /// Most time that their sequences add, `sum of a s^2 + b s`.
    pub work_ms: f64,
    /// Most tokens.
    pub tokens: f64,
}

/// A replica at its best number of micro-batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Estimated end.
    pub end: Millis,
    /// The longest of its micro-batches then; without a pipeline a micro-batch may have any length.
    pub longest: Millis,
}

impl ClassCapacity {
    /// The capacity of one class. Pipelines with equal stages and passes share their tables.
    pub fn new(cost: ClassCost, budget: CapacityBudget) -> ClassCapacity {
        let capacities = CapacityTable::shared(cost.stage_multipliers(), cost.forward_share(), budget);
        // Without a fixed cost, the least distinguished work is a small share of a full micro-batch's.
        let full = cost.sequence_ms(cost.cap()).0;
        let least = cost.fixed_ms().0.max(full / count(budget.least_work_part));
        let work_table = Arc::new(WorkTable::new(least, budget));
        ClassCapacity {
            cost,
            capacities,
            work_table,
            budget,
            counts_slowest_stage_alone: false,
            latest: Arc::default(),
        }
    }

    /// The capacity that bounds over every placement count: that of the slowest stage alone, if it is much slower than the
    /// others. Filling takes a small share of the time of such a pipeline, so the bound is almost the same, and the linear
    /// programs of all such classes would take long.
    pub(super) fn for_bounds(self) -> ClassCapacity {
        let multipliers = self.cost.stage_multipliers();
        let mean = multipliers.iter().sum::<f64>() / count(multipliers.len());
        let counts_slowest_stage_alone = self.cost.slowest_multiplier() >= self.budget.uneven * mean;
        ClassCapacity { counts_slowest_stage_alone, ..self }
    }

    /// The same capacity by the end of a step in which the stages of every replica of the class have at least these
    /// exposures to transfers.
    pub(super) fn exposed(self, exposures: &[Exposure]) -> ClassCapacity {
        // No micro-batch takes longer than one sequence with all its tokens.
        let full = self.cost.ms_of_work(self.cost.sequence_ms(self.cost.longest().max(self.cost.cap())));
        let stages = exposures.iter().zip(self.cost.stage_multipliers());
        let latest = stages.map(|(exposure, &multiplier)| LatestEnd::new(exposure, multiplier, full)).collect();
        ClassCapacity { latest, ..self }
    }

    /// The class's cost.
    pub fn cost(&self) -> &ClassCost {
        &self.cost
    }

    /// The times of `micro_batches`, one or more, in running order and as shares of the whole, that take least for that
    /// work by the fixed cost alone: packed towards times of at least `d`, replicas end up to 0.8 % later.
    pub fn shape(&self, micro_batches: usize, work: Millis) -> Cow<'_, [f64]> {
        self.capacities.shape(micro_batches, self.end(micro_batches, work).0, self.cost.fixed_ms().0)
    }

    /// The longest of those times.
    pub fn longest(&self, micro_batches: usize, work: Millis) -> Millis {
        self.longest_by(micro_batches, self.end(micro_batches, work))
    }

    fn longest_by(&self, micro_batches: usize, end: Millis) -> Millis {
        Millis(self.capacities.longest(micro_batches, end.0, self.cost.fixed_ms().0))
    }

    /// The earliest end of a replica with that much work in that many micro-batches.
    pub fn end(&self, micro_batches: usize, work: Millis) -> Millis {
        let shortest = self.shortest();
        let excess = (work - self.idle_ms() * count(micro_batches)).max(Millis::ZERO);
        match self.cost.stage_multipliers() {
            [multiplier] => (excess + shortest * count(micro_batches)) * *multiplier,
            _ => Millis(self.capacities.end(micro_batches, excess.0, shortest.0)),
        }
    }

    /// The least that any micro-batch takes: `c`, or `d` if that is longer.
    fn shortest(&self) -> Millis {
        self.cost.fixed_ms().max(self.cost.least_ms())
    }

    /// The work for which a micro-batch of the least time has room, `d - c`: micro-batches that take `d` or longer have the
    /// capacity of a fixed cost `d`, and this work each.
    fn idle_ms(&self) -> Millis {
        self.shortest() - self.cost.fixed_ms()
    }

    /// The number of micro-batches, `fewest` or more, that ends earliest.
    pub fn best_count(&self, work: Millis, fewest: usize) -> usize {
        if self.cost.stage_multipliers().len() == 1 {
            return fewest;
        }
        self.best(work).micro_batches.max(fewest)
    }

    /// A replica with these sequences if they could be divided.
    pub fn estimate(&self, work: Millis, tokens: Tokens) -> Estimate {
        let fewest = tokens.div_ceil(self.cost.cap());
        if self.cost.stage_multipliers().len() == 1 {
            return Estimate { end: self.end(fewest, work), longest: Millis::INFINITY };
        }
        let best = self.best(work);
        if best.micro_batches >= fewest {
            return Estimate { end: Millis(best.end), longest: Millis(best.longest) };
        }
        let end = self.end(fewest, work);
        Estimate { end, longest: self.longest_by(fewest, end) }
    }

    fn best(&self, work: Millis) -> Point {
        self.work_table.at(work.0, |work| {
            let end = |micro_batches: usize| self.end(micro_batches, Millis(work)).0;
            let mut best = (1, end(1));
            // Times fall and then rise with the count; the search continues past a few worse ones.
            let mut worse = 0;
            for micro_batches in self.counts().skip(1) {
                let next = end(micro_batches);
                if next < best.1 {
                    (best, worse) = ((micro_batches, next), 0);
                } else if worse == self.budget.worse_counts {
                    break;
                } else {
                    worse += 1;
                }
            }
            let (micro_batches, end) = best;
            Point { micro_batches, end, longest: self.longest_by(micro_batches, Millis(end)).0 }
        })
    }

    /// Most time that the sequences of `micro_batches` can add if the replica ends by `end`, or its step if transfers
    /// count; negative if that many cannot end by then. No packing exceeds it.
    pub fn most_work(&self, micro_batches: usize, end: Millis) -> f64 {
        self.most_work_at(self.share(end), micro_batches, end)
    }

    /// The same, at the table's level of `end`.
    fn most_work_at(&self, share: usize, micro_batches: usize, end: Millis) -> f64 {
        let alone = self.excess_on_slowest(micro_batches, end);
        let excess = match self.cost.stage_multipliers() {
            [_] => alone,
            _ => alone.min(self.capacities.most_work_at(share, micro_batches, end.0, self.shortest().0)),
        };
        self.with_idle(excess, micro_batches, end)
    }

    /// The table's level of `end`.
    fn share(&self, end: Millis) -> usize {
        self.capacities.level(end.0, self.shortest().0)
    }

    /// The most work of micro-batches that together may take `excess` more than their least times; negative if the least
    /// times alone end too late.
    fn with_idle(&self, excess: f64, micro_batches: usize, end: Millis) -> f64 {
        if excess < -ROUNDING * end.0.abs() { excess } else { excess + self.idle_ms().0 * count(micro_batches) }
    }

    /// The work that the slowest stage can compute by `end`, however well the pipeline is filled: never less than
    /// [`most_work`](ClassCapacity::most_work), and falling with every micro-batch.
    pub fn work_on_slowest(&self, micro_batches: usize, end: Millis) -> f64 {
        self.with_idle(self.excess_on_slowest(micro_batches, end), micro_batches, end)
    }

    /// The most that these micro-batches may take over their least times, on the stage that has room for the least.
    fn excess_on_slowest(&self, micro_batches: usize, end: Millis) -> f64 {
        let stages = self.latest.iter().zip(self.cost.stage_multipliers());
        let of_stages = stages.map(|(latest, multiplier)| latest.by(micro_batches, end).0 / multiplier);
        let computed = of_stages.fold(end.0 / self.cost.slowest_multiplier(), f64::min);
        computed - self.shortest().0 * count(micro_batches)
    }

    /// The capacity by `end` of each number of micro-batches, at most `most`, that holds more work or more tokens than
    /// smaller numbers do.
    pub fn levels(&self, end: Millis, most: usize) -> Vec<Level> {
        let mut levels = Vec::new();
        let (limit, linear) = (self.cost.in_flight_limit(), self.cost.linear_ms_per_token());
        // Work grows faster than tokens, so no consecutive micro-batches do more than one sequence with all their
        // tokens.
        let full = self.cost.sequence_ms(limit.tokens).0;
        let share = self.share(end);
        let (mut most_work, mut most_tokens) = (0.0_f64, 0.0_f64);
        for micro_batches in 1..=most {
            let on_slowest = self.work_on_slowest(micro_batches, end);
            let is_full = linear * most_tokens >= on_slowest.max(0.0) * (1.0 - 1e-12);
            if on_slowest <= 0.0 || (on_slowest <= most_work && is_full) {
                break;
            }
            let most =
                if self.counts_slowest_stage_alone { on_slowest } else { self.most_work_at(share, micro_batches, end) };
            let work = most.min(count(limit.groups(micro_batches)) * full);
            let room = limit.most_tokens(micro_batches);
            let tokens = if linear > 0.0 { room.min(work / linear) } else { room };
            if work > 0.0 && (work > most_work || tokens > most_tokens) {
                levels.push(Level { micro_batches, work_ms: work, tokens });
            }
            (most_work, most_tokens) = (most_work.max(work), most_tokens.max(tokens));
        }
        levels
    }

    /// The numbers of micro-batches among which the best is chosen.
    fn counts(&self) -> impl Iterator<Item = usize> + use<> {
        let CapacityBudget { spacing, most_micro_batches, .. } = self.budget;
        let next = move |&micro_batches: &usize| Some(micro_batches + (micro_batches / spacing).max(1));
        std::iter::successors(Some(1), next).take_while(move |&micro_batches| micro_batches <= most_micro_batches)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cost::{CostModel, CostProfile, RankPool, ReplicaClass, preset};
    use crate::pipeline::{MakespanBuffers, makespan};
    use crate::spec::{Cluster, Scheme};

    /// The capacity of a scheme whose micro-batches take `least` milliseconds or longer.
    fn capacity(scheme: &str, least: f64) -> ClassCapacity {
        let mut profile: CostProfile = preset("llama-32b-a800").unwrap();
        for entry in &mut profile.schemes {
            entry.least_ms = least;
        }
        let cost = CostModel::new(profile, Cluster::new(64, 8).unwrap());
        let scheme: Scheme = scheme.parse().unwrap();
        ClassCapacity::new(cost.scheme(scheme).unwrap().clone(), CapacityBudget::ONLINE)
    }

    fn end(capacity: &ClassCapacity, works: &[f64]) -> Millis {
        let times: Vec<Millis> = works.iter().map(|&work| capacity.cost().ms_of_work(Millis(work))).collect();
        let (stages, forward) = (capacity.cost().stage_multipliers(), capacity.cost().forward_share());
        makespan(&times, stages, forward, &mut MakespanBuffers::default())
    }

    proptest! {
        #[test]
        fn no_replica_with_a_least_time_holds_more(
            scheme in prop::sample::select(vec!["<tp8>", "<tp4,pp2>", "<tp8,pp3>"]),
            least in 0.0..900.0_f64,
            works in prop::collection::vec(0.0..1_500.0_f64, 1..9),
        ) {
            let capacity = capacity(scheme, least);
            let end = end(&capacity, &works);
            let all = works.iter().sum::<f64>();
            prop_assert!(all <= capacity.most_work(works.len(), end) * (1.0 + 1e-9) + 1e-6, "{all}");
            prop_assert!(capacity.most_work(works.len(), end) <= capacity.work_on_slowest(works.len(), end) + 1e-6);
        }
    }

    /// A pipeline with a slow stage holds at least its capacity by linear programs, and a little more.
    #[test]
    fn bounds_count_the_slowest_stage_of_an_uneven_pipeline() {
        let model = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap());
        let usual = RankPool::of_profile(model.profile());
        let capacity = |slow: f64| {
            let mut class = ReplicaClass::on("<tp4,pp2>".parse().unwrap(), usual);
            class.stages[0] = RankPool { speed: slow, ..usual };
            ClassCapacity::new(model.class(class).unwrap(), CapacityBudget::ONLINE)
        };
        for (slow, is_counted_alone) in [(0.9, false), (0.5, true)] {
            let exact = capacity(slow);
            let end = exact.end(12, Millis(4_000.0));
            let (levels, relaxed) = (exact.levels(end, 30), exact.clone().for_bounds().levels(end, 30));
            let most = |levels: &[Level]| levels.iter().map(|level| level.work_ms).fold(0.0, f64::max);
            assert_eq!(most(&relaxed) > most(&levels), is_counted_alone, "{slow}");
            assert!(most(&relaxed) < most(&levels) * 1.05, "{slow}");
            for level in levels {
                let covers = |other: &Level| {
                    let holds = other.work_ms >= level.work_ms && other.tokens >= level.tokens;
                    holds && other.micro_batches <= level.micro_batches
                };
                assert!(relaxed.iter().any(covers), "{slow} {level:?}");
            }
        }
    }

    /// Six micro-batches that all take the least time hold `d - c` each, and one more cannot end by then.
    #[test]
    fn micro_batches_of_the_least_time_fill_a_replica() {
        for scheme in ["<tp8>", "<tp4,pp2>"] {
            let (capacity, plain) = (capacity(scheme, 500.0), capacity(scheme, 0.0));
            let short = 500.0 - capacity.cost().fixed_ms().0;
            let end = end(&capacity, &[short; 6]);
            assert!((capacity.most_work(6, end) / (6.0 * short) - 1.0).abs() < 2e-3, "{scheme}");
            assert!(capacity.most_work(7, end) < 0.0 && plain.most_work(7, end) > 0.0, "{scheme}");
            assert!(capacity.levels(end, 20).iter().all(|level| level.micro_batches <= 6), "{scheme}");
        }
    }
}
