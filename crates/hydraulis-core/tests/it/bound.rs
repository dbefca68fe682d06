//! Lower bound and plan against the exact optimum.

use hydraulis_core::cost::preset;
use hydraulis_core::lengths::Batch;
use hydraulis_core::plan::{BoundKind, Planner};
use hydraulis_core::spec::{Cluster, MemoryRule};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::arbitrary::{any_case, cases, small_case};
use crate::oracle::optimum;

/// Sums of the same terms in another order differ by less.
const ROUNDING: f64 = 1e-9;

proptest! {
    #![proptest_config(cases(128))]

    #[test]
    fn bound_optimum_and_plan_stand_in_this_order(case in small_case()) {
        let (planner, batch) = (case.planner(), case.batch());
        let plan = planner.plan(&batch).unwrap();
        let optimum = optimum(&planner, batch.tokens());
        prop_assert!(plan.lower_bound.ms <= optimum, "bound {:?}, optimum {optimum:?}", plan.lower_bound);
        prop_assert!(
            optimum.0 <= plan.iteration_ms.0 * (1.0 + ROUNDING),
            "optimum {optimum:?}, plan {:?}",
            plan.iteration_ms
        );
    }

    #[test]
    fn the_bound_names_a_sequence_that_takes_that_long(case in any_case()) {
        let (planner, batch) = (case.planner(), case.batch());
        let bound = planner.plan(&batch).unwrap().lower_bound;
        if let BoundKind::Sequence(id) = bound.kind {
            let tokens = batch.tokens()[id];
            let admitting = planner.cost().schemes().iter().filter(|cost| cost.admits(tokens));
            let through = |multipliers: &[f64], ms: f64| ms * multipliers.iter().sum::<f64>();
            let alone = admitting.map(|cost| {
                through(cost.stage_multipliers(), cost.micro_batch_ms([tokens].into_iter()).0)
            });
            let close = alone.map(|ms| (bound.ms.0 / ms - 1.0).abs()).fold(f64::INFINITY, f64::min);
            prop_assert!(close <= 2.0 * ROUNDING, "{bound:?} is {close} from any scheme's time");
        }
    }
}

/// How far plans and bounds are from the optimum, on one fixed set of small instances; the limits are about
/// twice what was measured on 20,000 of them (0.02 % and 27 % above it, the bound at 93 % of it).
#[test]
fn small_plans_and_bounds_are_near_the_optimum() {
    const INSTANCES: u32 = 200;
    let mut runner = TestRunner::deterministic();
    let (mut excess, mut bounds) = (Vec::new(), Vec::new());
    let cases = small_case().prop_filter("memory", |case| case.memory == MemoryRule::Cap);
    for _ in 0..INSTANCES {
        let case = cases.new_tree(&mut runner).unwrap().current();
        let planner = case.planner();
        let plan = planner.plan(&case.batch()).unwrap();
        let optimum = optimum(&planner, case.batch().tokens()).0;
        excess.push(plan.iteration_ms.0 / optimum - 1.0);
        bounds.push(plan.lower_bound.ms.0 / optimum);
    }
    let mean = |list: &[f64]| list.iter().sum::<f64>() / f64::from(INSTANCES);
    let worst = excess.iter().copied().fold(0.0, f64::max);
    assert!(mean(&excess) < 0.001 && worst < 0.5, "mean {}, worst {worst}", mean(&excess));
    assert!(mean(&bounds) > 0.86, "{}", mean(&bounds));
}

/// Without fixed costs and pipelines nothing is lost, so the bound must reach the plan.
#[test]
fn what_only_wide_replicas_admit_bounds_them_alone() {
    let mut profile = preset("llama-32b-a800").unwrap();
    profile.schemes.iter_mut().for_each(|entry| entry.fixed_ms = 0.0);
    let strategies = vec!["2x<tp16>+8x<tp4>".parse().unwrap()];
    let planner = Planner::new(profile, Cluster::new(64, 8).unwrap(), Some(strategies)).unwrap();
    let plan = planner.plan(&Batch::new(&[10_000; 8], None).unwrap()).unwrap();
    assert!((-1e-9..1e-4).contains(&plan.gap()), "{}", plan.gap());
    let with_company: Vec<i64> = [vec![10_000; 8], vec![2_000; 20]].concat();
    let plan = planner.plan(&Batch::new(&with_company, None).unwrap()).unwrap();
    assert!(plan.gap() < 0.05, "{}", plan.gap());
}

/// Six replicas of nearly equal ends and full micro-batches but for the last. The gap is 0.27 %; it would be 0.59 %
/// without saving micro-batches, and 0.43 % were the bound to price replicas with few of them like those with many.
#[test]
fn micro_batches_are_saved_and_the_bound_knows_how_many_can_be() {
    let strategies = vec!["1x<tp16>+6x<tp8>".parse().unwrap()];
    let profile = preset("llama-32b-a800").unwrap();
    let planner = Planner::new(profile, Cluster::new(64, 8).unwrap(), Some(strategies)).unwrap();
    let lengths: Vec<i64> = (1..=560).map(|rank| 112_000 / (6 + rank)).collect();
    let plan = planner.plan(&Batch::new(&lengths, None).unwrap()).unwrap();
    assert!(plan.gap() < 0.0035, "{}", plan.gap());
}
