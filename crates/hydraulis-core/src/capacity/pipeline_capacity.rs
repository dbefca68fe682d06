//! The pipeline capacity: most work that ends by a given time, for any micro-batches.
//!
//! `v` micro-batches of times `t_m >= c` end by `T` exactly if no critical path of computations is longer than `T`;
//! each path is a sum of shares of the `t_m`. So the most work, `max sum (t_m - c)`, is a linear program, and its dual
//! weights paths such that they contain every micro-batch at least once: any such weights prove `sum (t_m - c) <= slope
//! T - toll c`. The program is solved by adding violated paths: the longest not at the program's own times, which jump
//! from one path to the next, but close to the best times known that end by `T` (Wentges 1997). The first times known
//! are those of a program with fewer rows. The search ends when the program's value, which is proven, is near what
//! these times hold.
//!
//! The best times are not equal: they rise geometrically, stay level, and fall towards the end. On 4 stages and 12
//! micro-batches that holds 9 % more than equal ones.

use crate::linear::Covering;
use crate::pipeline::CriticalPath;
use crate::spec::CapacityBudget;
use crate::units::count;

/// The capacity of a pipeline with one number of micro-batches.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineCapacity {
    slope: f64,
    toll: f64,
    shape: Vec<f64>,
    level: f64,
}

impl PipelineCapacity {
    /// The capacity of `micro_batches` on stages of these multipliers, sharpest at `c = fixed_share T`, within
    /// the budget of its linear program.
    pub fn new(
        stage_multipliers: &[f64],
        forward_share: f64,
        micro_batches: usize,
        fixed_share: f64,
        budget: CapacityBudget,
    ) -> PipelineCapacity {
        // A micro-batch alone passes every stage.
        let through: f64 = stage_multipliers.iter().sum();
        let tolerances = budget.tolerances.iter().find(|(most, _)| micro_batches <= *most);
        let mut search = Search {
            path: CriticalPath::new(stage_multipliers, forward_share, micro_batches),
            fixed_share,
            most: (1.0 / through - fixed_share).max(0.0),
            tolerance: tolerances.map_or(0.0, |(_, tolerance)| *tolerance),
            budget,
            held: vec![0.0; micro_batches],
            visits: vec![0.0; micro_batches],
        };
        search.end_by_one(vec![1.0; micro_batches]);
        if micro_batches > 2 * budget.coarse_ends + budget.coarse_width {
            search.run(&coarse_rows(micro_batches, budget));
        }
        let rows: Vec<usize> = (0..micro_batches).collect();
        let (program, paths) = search.run(&rows);
        let (slope, toll) = proven(&program, &paths, micro_batches, through);
        PipelineCapacity { slope, toll, level: level(&search.held), shape: search.held }
    }

    /// Most time of the micro-batches in addition to their fixed costs, `sum (t_m - c)`, if the replica ends by `end`;
    /// in the unit of the two, on a stage of multiplier 1.
    pub fn most_work(&self, end: f64, fixed: f64) -> f64 {
        self.slope * end - self.toll * fixed
    }

    /// The earliest end of that much work.
    pub fn end(&self, work: f64, fixed: f64) -> f64 {
        self.end_with_more(0.0, work, fixed)
    }

    /// The same, if additional micro-batches take `share` of the end and their part of the work.
    pub(super) fn end_with_more(&self, share: f64, work: f64, fixed: f64) -> f64 {
        (work + self.toll * fixed) / (self.slope + share)
    }

    /// The times of the micro-batches that hold about the most work, in running order, as shares of the end.
    pub fn shape(&self) -> &[f64] {
        &self.shape
    }

    /// The time of a micro-batch in the middle of that shape.
    pub fn level(&self) -> f64 {
        self.level
    }
}

/// The mean of the middle half, where times are level: they rise before it and fall after it.
fn level(shape: &[f64]) -> f64 {
    let outer = shape.len() / 4;
    let middle = &shape[outer..shape.len() - outer];
    middle.iter().sum::<f64>() / count(middle.len())
}

/// The row of each micro-batch in a program that gives neighbours in the middle, where times are level, one time.
fn coarse_rows(micro_batches: usize, budget: CapacityBudget) -> Vec<usize> {
    let middle = micro_batches - 2 * budget.coarse_ends;
    let wide = middle.div_ceil(budget.coarse_width);
    let first = 0..budget.coarse_ends;
    let last = budget.coarse_ends + wide..2 * budget.coarse_ends + wide;
    let between = (0..middle).map(|place| budget.coarse_ends + place / budget.coarse_width);
    first.chain(between).chain(last).collect()
}

/// The search for the paths of one number of micro-batches and one fixed share.
struct Search {
    path: CriticalPath,
    fixed_share: f64,
    /// Most time that a micro-batch can add to its fixed cost.
    most: f64,
    tolerance: f64,
    budget: CapacityBudget,
    /// The best times known that end by 1; they may be below the fixed share by 0.04 % of it.
    held: Vec<f64>,
    visits: Vec<f64>,
}

impl Search {
    /// Adds violated paths to the program with these rows until its value is near that of the best times known. Returns
    /// the program and all its paths.
    fn run(&mut self, rows: &[usize]) -> (Covering, Vec<Vec<f64>>) {
        let mut amounts = vec![0.0; rows.last().map_or(0, |last| last + 1)];
        for &row in rows {
            amounts[row] += 1.0;
        }
        let mut program = Covering::new(&amounts, self.most);
        let mut pivots = self.budget.pivots * amounts.len();
        let mut paths: Vec<Vec<f64>> = Vec::new();
        while pivots > 0 && program.settle(&mut pivots) {
            let time = |&row: &usize| program.prices()[row].max(0.0) + self.fixed_share;
            let times: Vec<f64> = rows.iter().map(time).collect();
            let near = self.budget.near;
            let between = self.held.iter().zip(&times).map(|(held, time)| near * held + (1.0 - near) * time).collect();
            self.end_by_one(between);
            let fixed = self.fixed_share * count(rows.len());
            if times.iter().sum::<f64>() - fixed <= (1.0 + self.tolerance) * (self.held.iter().sum::<f64>() - fixed) {
                break;
            }
            let longest = 1.0 + self.budget.violated * self.tolerance;
            if dot(&self.visits, &times) <= longest && self.path.longest(&times, &mut self.visits) <= longest {
                self.end_by_one(times);
                break;
            }
            let mut column = vec![0.0; amounts.len()];
            rows.iter().zip(&self.visits).for_each(|(&row, visits)| column[row] += visits);
            let cost = 1.0 - self.fixed_share * self.visits.iter().sum::<f64>();
            if !program.enter(paths.len(), &column, cost) {
                break;
            }
            paths.push(self.visits.clone());
            pivots = pivots.saturating_sub(1);
        }
        (program, paths)
    }

    /// Shrinks or stretches times until they end by 1, keeps them if they hold more than those known, and leaves the
    /// visits of their critical path.
    fn end_by_one(&mut self, mut times: Vec<f64>) {
        let length = self.path.longest(&times, &mut self.visits);
        for time in &mut times {
            *time /= length;
        }
        if times.iter().sum::<f64>() > self.held.iter().sum() {
            self.held = times;
        }
    }
}

fn dot(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

/// The cut that these paths prove: the uncovered part of a micro-batch is covered by the path of that micro-batch alone
/// through all stages.
fn proven(program: &Covering, paths: &[Vec<f64>], micro_batches: usize, through: f64) -> (f64, f64) {
    let mut covered = vec![0.0; micro_batches];
    let mut flow = 0.0;
    for (number, amount) in program.columns() {
        flow += amount;
        covered.iter_mut().zip(&paths[number]).for_each(|(covered, visits)| *covered += amount * visits);
    }
    let short: f64 = covered.iter().map(|covered| (1.0 - covered).max(0.0)).sum();
    (flow + short / through, covered.iter().sum::<f64>() + short)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pipeline::{MakespanBuffers, makespan};
    use crate::units::Millis;

    fn pipeline() -> impl Strategy<Value = (Vec<f64>, Vec<f64>, f64)> {
        let multipliers = prop::collection::vec(0.5..1.5_f64, 2..5);
        let times = prop::collection::vec(0.02..1.0_f64, 1..9);
        (multipliers, times, 0.0..0.9_f64)
    }

    proptest! {
        #[test]
        fn no_pipeline_holds_more((multipliers, times, share) in pipeline()) {
            let fixed = times.iter().copied().fold(f64::INFINITY, f64::min);
            let as_ms: Vec<Millis> = times.iter().copied().map(Millis).collect();
            let end = makespan(&as_ms, &multipliers, 1.0 / 3.0, &mut MakespanBuffers::default()).0;
            let capacity = PipelineCapacity::new(&multipliers, 1.0 / 3.0, times.len(), share, CapacityBudget::ONLINE);
            let work = times.iter().map(|time| time - fixed).sum::<f64>();
            prop_assert!(work <= capacity.most_work(end, fixed) * (1.0 + 1e-9) + 1e-9, "{work}");
            prop_assert!(capacity.end(work, fixed) <= end * (1.0 + 1e-9));
        }

        #[test]
        fn the_shape_has_the_stated_capacity((multipliers, times, part) in pipeline()) {
            let end = |times: &[f64]| {
                let times: Vec<Millis> = times.iter().copied().map(Millis).collect();
                makespan(&times, &multipliers, 1.0 / 3.0, &mut MakespanBuffers::default()).0
            };
            // Fixed costs alone end before the whole.
            let share = part / end(&vec![1.0; times.len()]);
            let capacity = PipelineCapacity::new(&multipliers, 1.0 / 3.0, times.len(), share, CapacityBudget::ONLINE);
            let work = capacity.shape().iter().map(|time| time - share).sum::<f64>();
            prop_assert!(end(capacity.shape()) <= 1.0 + 1e-9);
            prop_assert!((work - capacity.most_work(1.0, share)).abs() <= 2e-3 * work.max(0.1), "{work}");
        }
    }

    /// Around the number of micro-batches from which a coarse program begins the search, and far above it.
    #[test]
    fn a_coarse_start_leaves_the_capacity_exact() {
        let (multipliers, share) = ([1.0; 8], 0.5_f64.powi(8));
        for (micro_batches, tolerance) in [(20, 5e-4), (21, 5e-4), (22, 5e-4), (32, 5e-4), (33, 3e-3), (64, 3e-3)] {
            let capacity = PipelineCapacity::new(&multipliers, 1.0 / 3.0, micro_batches, share, CapacityBudget::ONLINE);
            let times: Vec<Millis> = capacity.shape().iter().copied().map(Millis).collect();
            assert_eq!(times.len(), micro_batches);
            assert!(makespan(&times, &multipliers, 1.0 / 3.0, &mut MakespanBuffers::default()).0 <= 1.0 + 1e-9);
            let work = capacity.shape().iter().map(|time| time - share).sum::<f64>();
            let excess = capacity.most_work(1.0, share) / work - 1.0;
            assert!((-1e-9..=tolerance).contains(&excess), "{micro_batches}: {excess}");
        }
    }

    #[test]
    fn one_micro_batch_passes_every_stage() {
        let capacity = PipelineCapacity::new(&[1.0, 2.0], 1.0 / 3.0, 1, 0.1, CapacityBudget::ONLINE);
        assert!((capacity.most_work(3.0, 0.25) - 0.75).abs() < 1e-12);
    }
}
