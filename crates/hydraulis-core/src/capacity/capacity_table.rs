//! The capacities of one kind of pipeline, computed on first use.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use crate::capacity::PipelineCapacity;
use crate::capacity::extended_capacity::ExtendedCapacity;
use crate::spec::CapacityBudget;
use crate::units::count;

/// The tables in use in this process. A planner with corrected times takes those of the planner that it replaces.
static IN_USE: Mutex<Vec<Weak<CapacityTable>>> = Mutex::new(Vec::new());

/// Capacities for stages of these multipliers, by micro-batch count and fixed share.
///
/// An entry is a pure function of its place in the table: the order of queries changes nothing.
#[derive(Debug)]
pub struct CapacityTable {
    stage_multipliers: Vec<f64>,
    forward_share: f64,
    slowest: f64,
    budget: CapacityBudget,
    capacities: Vec<OnceLock<PipelineCapacity>>,
}

impl CapacityTable {
    /// The table that this process has for stages of these multipliers and this share, or an empty one.
    pub fn shared(stage_multipliers: &[f64], forward_share: f64, budget: CapacityBudget) -> Arc<CapacityTable> {
        let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        in_use.retain(|table| table.strong_count() > 0);
        let known = in_use.iter().filter_map(Weak::upgrade).find(|table| {
            table.stage_multipliers == stage_multipliers
                && table.forward_share.total_cmp(&forward_share).is_eq()
                && table.budget == budget
        });
        known.unwrap_or_else(|| {
            let table = Arc::new(CapacityTable::new(stage_multipliers, forward_share, budget));
            in_use.push(Arc::downgrade(&table));
            table
        })
    }

    /// An empty table.
    fn new(stage_multipliers: &[f64], forward_share: f64, budget: CapacityBudget) -> CapacityTable {
        CapacityTable {
            stage_multipliers: stage_multipliers.to_vec(),
            forward_share,
            slowest: stage_multipliers.iter().copied().fold(0.0, f64::max),
            budget,
            capacities: vec![OnceLock::new(); budget.tabulated_counts * budget.tabulated_shares],
        }
    }

    /// Most of `sum (t_m - c)` that `micro_batches` may take if the replica ends by `end`, at the level of `end` and
    /// `fixed`; negative if it cannot.
    pub(super) fn most_work_at(&self, level: usize, micro_batches: usize, end: f64, fixed: f64) -> f64 {
        let on_slowest = end / self.slowest - fixed * count(micro_batches);
        if micro_batches > self.budget.tabulated_counts {
            return on_slowest;
        }
        let [first, second] = self.levels_around(micro_batches, level);
        let most_work = |level: usize| self.capacity(micro_batches, level).most_work(end, fixed);
        let most = on_slowest.min(most_work(first));
        if second == first { most } else { most.min(most_work(second)) }
    }

    /// The earliest end of `micro_batches` with that much of `sum (t_m - c)`; an estimate if the table has no entry of
    /// that count.
    pub fn end(&self, micro_batches: usize, work: f64, fixed: f64) -> f64 {
        let mut end = (work + fixed * count(micro_batches)) * self.slowest;
        // Later ends mean smaller shares, whose capacity is greater there: this rises to the answer, level by level.
        for _ in 0..self.budget.tabulated_shares {
            let lines = self.around(micro_batches, end, fixed).map(|capacity| capacity.end(work, fixed));
            let later = lines.into_iter().fold(end, f64::max);
            if later <= end {
                break;
            }
            end = later;
        }
        end
    }

    /// The times, as shares of the end, of one or more micro-batches that hold the most.
    pub fn shape(&self, micro_batches: usize, end: f64, fixed: f64) -> Cow<'_, [f64]> {
        self.around(micro_batches, end, fixed)[0].shape()
    }

    /// The longest time of that shape.
    pub fn longest(&self, micro_batches: usize, end: f64, fixed: f64) -> f64 {
        end * self.around(micro_batches, end, fixed)[0].longest()
    }

    /// The capacities around `fixed / end`, those of many micro-batches extended.
    fn around(&self, micro_batches: usize, end: f64, fixed: f64) -> [ExtendedCapacity<'_>; 2] {
        let own = micro_batches.min(self.budget.tabulated_counts);
        // Times are level in the middle, so `own` of them take about their share of the whole.
        let end_of_own = if own < micro_batches { end * count(own) / count(micro_batches) } else { end };
        self.capacities_around(own, end_of_own, fixed)
            .map(|capacity| ExtendedCapacity::new(capacity, micro_batches - own, self.slowest))
    }

    /// The table's entries for the shares around `fixed / end`.
    fn capacities_around(&self, micro_batches: usize, end: f64, fixed: f64) -> [&PipelineCapacity; 2] {
        self.levels_around(micro_batches, self.level(end, fixed)).map(|level| self.capacity(micro_batches, level))
    }

    /// The level of the least share in the table that is not below `fixed / end`.
    pub(super) fn level(&self, end: f64, fixed: f64) -> usize {
        level(end, fixed, self.budget.tabulated_shares - 1)
    }

    /// The levels around this one that the table has for this number of micro-batches.
    fn levels_around(&self, micro_batches: usize, level: usize) -> [usize; 2] {
        let last = self.budget.tabulated_shares - 1;
        let is_dense = micro_batches <= self.budget.dense_counts;
        if is_dense { [level, (level + 1).min(last)] } else { [(level | 1).min(last); 2] }
    }

    fn capacity(&self, micro_batches: usize, level: usize) -> &PipelineCapacity {
        self.capacities[(micro_batches - 1) * self.budget.tabulated_shares + level].get_or_init(|| {
            let fixed_share = 0.5_f64.powi(i32::try_from(level + 1).unwrap_or(i32::MAX));
            PipelineCapacity::new(&self.stage_multipliers, self.forward_share, micro_batches, fixed_share, self.budget)
        })
    }
}

/// The level of the least share that is not below `fixed / end`, up to `last`.
fn level(end: f64, fixed: f64, last: usize) -> usize {
    let mut next = 0.5;
    let is_last = |_: &usize| {
        next *= 0.5;
        fixed > next * end
    };
    (0..last).find(is_last).unwrap_or(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::{MakespanBuffers, makespan};
    use crate::units::Millis;

    /// Even with few table entries no pipeline exceeds them, whatever its shape: rising and falling ones, and equal
    /// ones.
    #[test]
    fn no_pipeline_of_many_micro_batches_holds_more() {
        let (multipliers, fixed) = ([1.0, 1.2, 1.0], 1.0);
        let table = CapacityTable::new(&multipliers, 1.0 / 3.0, CapacityBudget::ONLINE);
        let micro_batches = CapacityBudget::ONLINE.dense_counts + 2;
        for steepness in 0..8 {
            let rise = |place: usize| count(place.min(micro_batches - 1 - place) * steepness);
            let times: Vec<Millis> = (0..micro_batches).map(|place| Millis(fixed + 3.0 + rise(place))).collect();
            let end = makespan(&times, &multipliers, 1.0 / 3.0, &mut MakespanBuffers::default()).0;
            let work = times.iter().map(|time| time.0 - fixed).sum::<f64>();
            let most = table.most_work_at(table.level(end, fixed), micro_batches, end, fixed);
            assert!(work <= most * (1.0 + 1e-9), "{work} {most}");
            assert!(table.end(micro_batches, work, fixed) <= end * (1.0 + 1e-9));
            assert_eq!(table.shape(micro_batches, end, fixed).len(), micro_batches);
            let longest = table.longest(micro_batches, end, fixed);
            assert!((end / count(micro_batches + 2)..end / 4.0).contains(&longest), "{longest} of {end}");
        }
    }

    /// Tables of the same stages and passes are one, for as long as it is in use.
    #[test]
    fn tables_are_shared_while_in_use() {
        let (stages, budget) = ([1.0, 1.25, 0.875], CapacityBudget::ONLINE);
        let shared = |share: f64| CapacityTable::shared(&stages, share, budget);
        let (first, other) = (shared(0.25), shared(0.375));
        assert!(Arc::ptr_eq(&first, &shared(0.25)) && !Arc::ptr_eq(&first, &other));
        let coarse = CapacityBudget { pivots: 1, ..budget };
        assert!(!Arc::ptr_eq(&first, &CapacityTable::shared(&stages, 0.25, coarse)));
        first.end(4, 1.0, 0.1);
        let computed = |table: &CapacityTable| table.capacities.iter().filter(|entry| entry.get().is_some()).count();
        assert!(computed(&shared(0.25)) > 0);
        drop(first);
        assert_eq!(computed(&shared(0.25)), 0);
    }

    /// The estimate for more micro-batches than the table has continues from the table's last entries.
    #[test]
    fn estimates_continue_beyond_the_last_entry() {
        for multipliers in [vec![1.0; 8], vec![1.0; 4]] {
            let table = CapacityTable::new(&multipliers, 1.0 / 3.0, CapacityBudget::ONLINE);
            let tabulated = CapacityBudget::ONLINE.tabulated_counts;
            for work in [1_000.0, 1_500.0] {
                let of = |micro_batches| {
                    let end = table.end(micro_batches, work, 1.0);
                    (end, table.longest(micro_batches, end, 1.0), table.shape(micro_batches, end, 1.0))
                };
                let (last, next, twice) = (of(tabulated), of(tabulated + 1), of(2 * tabulated));
                // One more micro-batch adds a fixed cost, and removes a 64th of the bubble.
                assert!((last.0 - next.0).abs() < 0.01 * last.0, "{multipliers:?} {work}: {} {}", last.0, next.0);
                assert!((last.1 - next.1).abs() < 0.03 * last.1, "{multipliers:?} {work}: {} {}", last.1, next.1);
                for (end, _, shape) in [next, twice] {
                    let times: Vec<Millis> = shape.iter().map(|share| Millis(share * end)).collect();
                    let ends = makespan(&times, &multipliers, 1.0 / 3.0, &mut MakespanBuffers::default()).0;
                    assert!((ends / end - 1.0).abs() < 0.01, "{multipliers:?} {work}: {ends} {end}");
                    let work_done: f64 = times.iter().map(|time| time.0 - 1.0).sum();
                    assert!((work_done / work - 1.0).abs() < 0.02, "{multipliers:?} {work}: {work_done}");
                }
            }
        }
    }
}
