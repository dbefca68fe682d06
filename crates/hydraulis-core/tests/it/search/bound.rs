//! Lower bound and plan compared to the exact optimum.

use hydraulis_core::batch::Batch;
use hydraulis_core::cost::{CostProfile, preset};
use hydraulis_core::plan::BoundKind;
use hydraulis_core::search::Planner;
use hydraulis_core::spec::{BoundBudget, Cluster, LongBudget, MemoryRule, SearchBudget};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::support::arbitrary::{any_case, cases, small_case};
use crate::support::oracle::optimum;

/// Sums of the same terms in different orders differ by less.
const ROUNDING: f64 = 1e-9;

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn bound_optimum_and_plan_are_in_ascending_order(case in small_case()) {
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

    /// With one candidate and no refinement, plans are far from the optimum, and so the bound may be above it.
    #[test]
    fn no_plan_is_shorter_than_the_bound_with_whole_long_sequences(case in small_case()) {
        let long = LongBudget { far: 0.0, probes: 24, close: 1e-9, ..LongBudget::ONLINE };
        let bound = BoundBudget { long, ..BoundBudget::ONLINE };
        let budget = SearchBudget { refinements: 0, candidates: 1, bound, ..SearchBudget::ONLINE };
        let batch = case.batch();
        let optimum = optimum(&case.planner(), batch.tokens());
        let plans = [case.planner(), case.searching()].map(|planner| planner.with_budget(budget).plan(&batch));
        for plan in plans.into_iter().flatten() {
            prop_assert!(plan.lower_bound.ms <= optimum, "bound {:?}, optimum {optimum:?}", plan.lower_bound);
        }
    }

    #[test]
    fn the_bound_names_a_sequence_that_takes_its_time(case in any_case()) {
        let (planner, batch) = (case.planner(), case.batch());
        let bound = planner.plan(&batch).unwrap().lower_bound;
        if let BoundKind::Sequence(id) = bound.kind {
            let tokens = batch.tokens()[id];
            let admitting = planner.cost().best().iter().filter(|cost| cost.admits(tokens));
            let through = |multipliers: &[f64], ms: f64| ms * multipliers.iter().sum::<f64>();
            let alone = admitting.map(|cost| {
                through(cost.stage_multipliers(), cost.micro_batch_ms([tokens].into_iter()).0)
            });
            let close = alone.map(|ms| (bound.ms.0 / ms - 1.0).abs()).fold(f64::INFINITY, f64::min);
            prop_assert!(close <= 2.0 * ROUNDING, "{bound:?} is {close} from any scheme's time");
        }
    }
}

/// The distance of plans and bounds from the optimum, on one fixed set of small instances; the limits are about twice
/// the values measured on 20,000 of them (plans 0.02 % and 27 % above it, the bound at 93 % of it).
#[test]
fn small_plans_and_bounds_are_near_the_optimum() {
    const INSTANCES: u32 = 200;
    let mut runner = TestRunner::deterministic();
    let (mut excess, mut bounds) = (Vec::new(), Vec::new());
    let cases = small_case().prop_filter("memory", |case| case.memory == MemoryRule::PerMicroBatch);
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

/// Where few long sequences decide, a bound that divides them is far below every plan: 22, 25 and 24 %.
#[test]
fn whole_long_sequences_bound_batches_that_they_decide() {
    let planner = Planner::search(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap()).unwrap();
    let divided = LongBudget { far: 1.0, ..LongBudget::ONLINE };
    let budget = SearchBudget { bound: BoundBudget { long: divided, ..BoundBudget::ONLINE }, ..planner.budget() };
    let dividing = planner.clone().with_budget(budget);
    let equal = vec![3_000; 67];
    let pairs = vec![32_255, 32_191, 31_656, 29_450, 27_886, 22_589, 17_535, 11_201, 6_122, 5_679, 4_057, 1_580, 50];
    let few: Vec<i64> =
        [29_207, 28_956, 28_226, 28_213, 26_808].into_iter().chain((0..90).map(|i| 300 + 9 * i)).collect();
    for (lengths, limit, before) in [(equal, 0.03, 0.2), (pairs, 0.002, 0.03), (few, 0.002, 0.02)] {
        let batch = Batch::new(&lengths, None).unwrap();
        let (plan, weak) = (planner.plan(&batch).unwrap(), dividing.plan(&batch).unwrap());
        assert!(plan.gap() < limit, "{} {}", plan.gap(), weak.gap());
        assert!(weak.gap() > before, "{}", weak.gap());
        assert_eq!(plan.strategy, weak.strategy);
    }
}

/// Long sequences pass all stages of the only replicas: the gaps of bounds that divide them are 15 and 12 %.
#[test]
fn a_whole_long_sequence_bounds_the_strategies_of_a_list() {
    let short = vec![300; 60];
    for (strategy, long) in [("1x<tp4,pp4>", vec![12_000]), ("2x<tp4,pp2>", vec![10_000, 9_000])] {
        let strategies = vec![strategy.parse().unwrap()];
        let profile = preset("llama-32b-a800").unwrap();
        let planner = Planner::new(profile, Cluster::new(64, 8).unwrap(), Some(strategies)).unwrap();
        let plan = planner.plan(&Batch::new(&[long, short.clone()].concat(), None).unwrap()).unwrap();
        assert!(plan.gap() < 0.05, "{strategy}: {}", plan.gap());
    }
}

/// Without fixed costs and pipelines no time is lost, so the bound must equal the plan.
#[test]
fn sequences_of_wide_replicas_bound_these_alone() {
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

/// Six replicas of nearly equal ends and full micro-batches except for the last. The gap is 0.27 %; it would be 0.59 %
/// without the reduction of micro-batches, and 0.43 % if the bound gave replicas with few and with many of them one
/// price.
#[test]
fn plan_and_bound_use_the_fewest_micro_batches() {
    let strategies = vec!["1x<tp16>+6x<tp8>".parse().unwrap()];
    let profile = preset("llama-32b-a800").unwrap();
    let planner = Planner::new(profile, Cluster::new(64, 8).unwrap(), Some(strategies)).unwrap();
    let lengths: Vec<i64> = (1..=560).map(|rank| 112_000 / (6 + rank)).collect();
    let plan = planner.plan(&Batch::new(&lengths, None).unwrap()).unwrap();
    assert!(plan.gap() < 0.0035, "{}", plan.gap());
}

/// With at most three replicas of <1> the linear program uses 3.4; a branch there would require at least four of them
/// on one side.
#[test]
fn a_program_with_more_replicas_than_the_cluster_has_is_not_divided() {
    #[rustfmt::skip]
    let lengths: [i64; 199] = [
        33, 17702, 395, 512, 17, 3149, 3718, 1981, 12271, 10, 13, 2, 1, 7196, 11627, 1, 78, 19, 16, 2, 2411, 3, 2350,
        599, 7220, 8621, 2, 34, 169, 5648, 78, 951, 864, 58, 612, 7870, 1, 1, 201, 5215, 2, 128, 245, 2232, 3, 63, 8,
        2030, 1975, 2160, 13266, 57, 13, 320, 35, 1, 17, 5970, 4, 15, 393, 151, 3, 4201, 6871, 22535, 7872, 136,
        9060, 10, 133, 6986, 3066, 464, 3, 2420, 3148, 941, 1841, 3, 25687, 89, 8244, 36, 87, 15, 5, 87, 549, 11, 3,
        59, 538, 4, 1, 202, 3, 6512, 6, 16, 342, 23383, 62, 1, 1570, 12566, 1480, 3572, 230, 10, 16687, 751, 38,
        5637, 6542, 16045, 2405, 4660, 9914, 51, 3580, 1191, 55, 76, 90, 1858, 496, 26197, 13797, 7, 97, 12, 282, 15,
        758, 44, 3395, 422, 2, 13340, 136, 195, 8, 12, 20014, 34, 90, 178, 1, 2605, 2, 59, 69, 15, 18232, 10, 2, 18,
        12, 387, 14184, 7623, 248, 19936, 1, 307, 7559, 11417, 2474, 1951, 5467, 130, 2, 409, 9567, 10024, 10858, 6,
        320, 2275, 1, 1987, 145, 6442, 1, 59, 476, 4, 1031, 24428, 839, 23, 257, 526, 647, 3682, 253, 12903, 21,
    ];
    let entry = |scheme: &str, costs: [f64; 3], held: u64| {
        serde_json::json!({
            "scheme": scheme, "quadratic_ms_per_token2": costs[0], "linear_ms_per_token": costs[1], "fixed_ms": costs[2],
            "forward_share": 0.1, "resident_bytes": held, "activation_bytes_per_token": 1_000.0,
        })
    };
    let profile = serde_json::json!({
        "format": "hydraulis.cost-profile/2", "name": "found by chance", "source": "a random case",
        "hardware": {"device": "none", "gpus_per_node": 8, "memory_bytes": 100_000_000},
        "memory": {"reserved_bytes": 1_000_000, "optimizer_bytes": 384, "token_multiple": 1},
        "schemes": [
            entry("<1>", [7.041_699_616_772_946e-7, 0.021_520_726_821_058_322, 330.048_360_938_924_93], 69_477_936),
            entry("<1,full>", [0.000_034_578_520_943_940_07, 1.237_931_487_755_158_6, 786.129_124_168_537_5], 98_990_936),
        ],
    });
    let profile = CostProfile::from_json(&profile.to_string()).unwrap();
    let strategies = vec!["4x<1>+1x<1,full>".parse().unwrap()];
    let planner = Planner::new(profile, Cluster::new(6, 2).unwrap(), Some(strategies)).unwrap();
    let plan = planner.plan(&Batch::new(&lengths, None).unwrap()).unwrap();
    assert!((0.0..0.1).contains(&plan.gap()), "{}", plan.gap());
}
