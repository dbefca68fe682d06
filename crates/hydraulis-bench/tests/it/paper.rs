//! Compares the paper's dynamic program to a slow, direct implementation.

use hydraulis_bench::baseline::{PaperGrid, PaperStrategy, paper_list};
use hydraulis_core::Tokens;
use hydraulis_core::batch::LengthHistogram;
use hydraulis_core::construct::usable_schemes;
use hydraulis_core::cost::{ClassCost, CostModel, preset};
use hydraulis_core::layout::place;
use hydraulis_core::spec::Cluster;
use proptest::prelude::*;

use crate::arbitrary::{any_case, cases};

/// The recurrence evaluated directly: without tables, every sum computed again.
struct Twin<'a> {
    costs: Vec<&'a ClassCost>,
    lengths: Vec<Tokens>,
    grid: PaperGrid,
}

impl Twin<'_> {
    fn edge(&self, step: u64) -> Tokens {
        Tokens((step * self.grid.token_step.0).min(self.grid.context.0))
    }

    /// The least time of the slowest replica when `ranks` serve all sequences up to a step.
    fn best(&self, step: u64, ranks: u64) -> f64 {
        if step == 0 {
            return 0.0;
        }
        let mut best = f64::INFINITY;
        for from in 0..step {
            for cost in self.costs.iter().filter(|cost| cost.admits(self.edge(step))) {
                let needed = cost.scheme().ranks();
                for replicas in 1..=ranks / needed {
                    let left = ranks - replicas * needed;
                    let others = self.best(from, left - left % u64::from(self.grid.gpu_step));
                    best = best.min(others.max(self.cost(cost, from, step) / Tokens(replicas).as_f64()));
                }
            }
        }
        best
    }

    /// The least time when only `left` replicas of each scheme remain.
    fn best_of(&self, step: u64, left: &mut Vec<(&ClassCost, u64)>) -> f64 {
        if step == 0 {
            return 0.0;
        }
        let mut best = f64::INFINITY;
        for from in 0..step {
            for group in 0..left.len() {
                let (cost, most) = left[group];
                for replicas in (1..=most).filter(|_| cost.admits(self.edge(step))) {
                    left[group].1 -= replicas;
                    let others = self.best_of(from, left);
                    left[group].1 += replicas;
                    best = best.min(others.max(self.cost(cost, from, step) / Tokens(replicas).as_f64()));
                }
            }
        }
        best
    }

    fn cost(&self, cost: &ClassCost, from: u64, to: u64) -> f64 {
        let inside = self.lengths.iter().filter(|&&length| self.edge(from) < length && length <= self.edge(to));
        let times: Vec<f64> = inside.map(|&length| cost.micro_batch_ms([length].into_iter()).0).collect();
        let longest = times.iter().copied().fold(0.0, f64::max);
        times.iter().sum::<f64>() + f64::from(cost.scheme().pp() - 1) * longest
    }
}

proptest! {
    #![proptest_config(cases(128))]

    #[test]
    fn the_optimum_equals_that_of_the_reference(case in any_case(), steps in 1..=4_u64, rows in 1..=6_u32) {
        let gpus = case.cluster.gpus();
        let cost = CostModel::new(case.profile.clone(), case.cluster.clone()).with_memory(case.memory);
        let context = case.planner().longest_admitted();
        let grid = PaperGrid {
            gpu_step: gpus.div_ceil(rows).max(gpus.div_ceil(12)),
            token_step: Tokens(context.0.div_ceil(steps)),
            context,
        };
        let data = LengthHistogram::new(&case.lengths, None).unwrap();
        let list = paper_list(&cost, &data, grid).unwrap();
        let schemes = usable_schemes(&cost);
        let twin = Twin {
            costs: schemes.iter().map(|&scheme| cost.scheme(scheme).unwrap()).collect(),
            lengths: case.batch().tokens().to_vec(),
            grid,
        };
        let ranks = u64::from(gpus - gpus % grid.gpu_step);
        for PaperStrategy { strategy, serves, ms } in &list {
            let step = serves.0.div_ceil(grid.token_step.0);
            let expected = twin.best(step, ranks);
            let groups = strategy.groups().into_iter();
            let mut own = groups.map(|(scheme, count)| (cost.scheme(scheme).unwrap(), count as u64)).collect();
            prop_assert!(twin.best_of(step, &mut own) <= ms.0 * (1.0 + 1e-9), "{strategy} does not take {ms:?}");
            prop_assert!((ms.0 - expected).abs() <= 1e-9 * expected.max(1.0), "{strategy} {ms:?}, twin {expected}");
            prop_assert!(strategy.ranks() <= ranks && place(strategy, &case.cluster).is_ok());
        }
        for (place, one) in list.iter().enumerate() {
            prop_assert!(list[..place].iter().all(|earlier| earlier.strategy != one.strategy && earlier.serves < one.serves));
        }
    }
}

fn data(gpus: u32) -> (CostModel, LengthHistogram) {
    let cost = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(gpus, 8).unwrap());
    let (lengths, counts): (Vec<i64>, Vec<i64>) =
        (0..15).map(|power| (1_i64 << power, [9, 90, 900, 9_000][power % 4] >> (power / 4))).unzip();
    (cost, LengthHistogram::new(&lengths, Some(&counts)).unwrap())
}

#[test]
fn on_64_ranks_the_list_ends_with_one_that_admits_the_context() {
    let (cost, data) = data(64);
    let grid = PaperGrid { gpu_step: 4, token_step: Tokens(1_024), context: Tokens(33_024) };
    let list = paper_list(&cost, &data, grid).unwrap();
    let last = list.last().unwrap();
    assert_eq!(last.serves, grid.context);
    assert!(last.strategy.to_string().contains("<tp16>"), "{}", last.strategy);
    assert!(list.len() >= 5, "{}", list.len());
    assert!(list.windows(2).all(|pair| pair[0].ms <= pair[1].ms));
}

#[test]
fn arguments_without_a_grid_are_named() {
    let (cost, data) = data(64);
    let code = |gpu_step, token_step, context| {
        let grid = PaperGrid { gpu_step, token_step: Tokens(token_step), context: Tokens(context) };
        paper_list(&cost, &data, grid).unwrap_err().code()
    };
    assert_eq!(code(0, 1, 1_000), "argument_invalid");
    assert_eq!(code(65, 1, 1_000), "argument_invalid");
    assert_eq!(code(4, 0, 1_000), "argument_invalid");
    assert_eq!(code(4, 1, 32_768), "argument_invalid");
    assert_eq!(code(4, 1, 0), "argument_invalid");
    assert_eq!(code(4, 1_024, 50_000), "sequence_too_long");
}
