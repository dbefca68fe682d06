//! Runs with a limit on the number of strategies.

use hydraulis_core::Tokens;
use hydraulis_core::batch::Batch;
use hydraulis_core::cost::preset;
use hydraulis_core::plan::{Plan, Scope};
use hydraulis_core::search::{Planner, RunLimit};
use hydraulis_core::spec::{Cluster, Strategy};
use proptest::prelude::*;

use crate::cost::presets::batch_of_tokens;
use crate::support::arbitrary::{any_case, cases};

/// Plans the batches in turn, as a run does.
fn run(planner: &Planner, batches: &[Batch], most: usize) -> (Vec<Plan>, Vec<Strategy>) {
    let (mut plans, mut used) = (Vec::new(), Vec::new());
    for batch in batches {
        let plan = planner.plan_limited(batch, RunLimit { most, used: &used }).unwrap();
        if !used.contains(&plan.strategy) {
            used.push(plan.strategy.clone());
        }
        plans.push(plan);
    }
    (plans, used)
}

fn llama_32b() -> Planner {
    Planner::search(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap()).unwrap()
}

fn total(plans: &[Plan]) -> f64 {
    plans.iter().map(|plan| plan.iteration_ms.0).sum()
}

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn no_batch_is_left_without_a_strategy(case in any_case(), most in 1..=4_usize, is_search in any::<bool>()) {
        let planner = if is_search { case.searching() } else { case.planner() };
        let longest = i64::try_from(planner.longest_admitted().0).unwrap();
        let parts = case.lengths.chunks(case.lengths.len().div_ceil(6));
        let mut batches: Vec<Batch> = parts.map(|lengths| Batch::new(lengths, None).unwrap()).collect();
        // The shortest sequences come first, and the longest that any strategy admits last.
        batches.sort_by_key(|batch| batch.longest().1);
        batches.push(Batch::new(&[longest, 1], None).unwrap());
        let (plans, used) = run(&planner, &batches, most);
        prop_assert!(used.len() <= most);
        for (plan, batch) in plans.iter().zip(&batches) {
            let violations = planner.check(plan, batch);
            prop_assert!(violations.is_empty(), "{violations:?}");
        }
    }
}

#[test]
fn a_generous_limit_gives_nearly_the_plans_of_the_search() {
    let batches: Vec<Batch> = (0..12).map(|seed| batch_of_tokens(seed, 200_000)).collect();
    let free: Vec<Plan> = batches.iter().map(|batch| llama_32b().plan(batch).unwrap()).collect();
    let (plans, _) = run(&llama_32b(), &batches, 1_000);
    assert!(total(&plans) <= total(&free) * 1.000_2);
    // A strategy in use stays if a new one gains almost nothing.
    let (plans, used) = run(&llama_32b(), &batches, 16);
    let distinct: std::collections::BTreeSet<Strategy> = free.iter().map(|plan| plan.strategy.clone()).collect();
    assert!(used.len() < distinct.len(), "{} of {}", used.len(), distinct.len());
    assert!(total(&plans) <= total(&free) * 1.01, "{}", total(&plans) / total(&free));
}

/// Two strategies suit short sequences, and then one sequence needs a third.
#[test]
fn the_last_strategy_is_reserved_for_the_longest_sequence() {
    let planner = llama_32b();
    let used: Vec<Strategy> = ["16x<tp4>", "8x<tp4,pp2>"].map(|text| text.parse().unwrap()).to_vec();
    let limit = RunLimit { most: 3, used: &used };
    // 12,500 tokens fit <tp8>, which would be the third; but <tp16> alone admits every later sequence.
    let plan = planner.plan_limited(&Batch::new(&[12_500, 900], None).unwrap(), limit).unwrap();
    assert!(plan.strategy.to_string().contains("<tp16>"), "{}", plan.strategy);
    assert_eq!(plan.scope, Scope::List);
    // Sequences that the strategies in use admit are planned under them, whatever the gain of a wide one.
    let plan = planner.plan_limited(&Batch::new(&[12_400, 900], None).unwrap(), limit).unwrap();
    assert!(used.contains(&plan.strategy), "{}", plan.strategy);
    // With one more strategy left, the third is free.
    let free = RunLimit { most: 4, used: &used };
    let plan = planner.plan_limited(&Batch::new(&[12_500, 900], None).unwrap(), free).unwrap();
    assert_eq!(plan, planner.plan(&Batch::new(&[12_500, 900], None).unwrap()).unwrap());
}

#[test]
fn a_resumed_run_continues_with_the_same_plans() {
    let planner = llama_32b();
    let batches: Vec<Batch> = (20..28).map(|seed| batch_of_tokens(seed, 100_000)).collect();
    let (plans, _) = run(&planner, &batches, 4);
    for resumed in 0..batches.len() {
        let mut used: Vec<Strategy> = plans[..resumed].iter().map(|plan| plan.strategy.clone()).collect();
        used.sort();
        used.dedup();
        let plan = llama_32b().plan_limited(&batches[resumed], RunLimit { most: 4, used: &used }).unwrap();
        assert_eq!((&plan.replicas, plan.iteration_ms), (&plans[resumed].replicas, plans[resumed].iteration_ms));
    }
}

#[test]
fn with_fewer_strategies_left_a_new_one_must_gain_more() {
    let planner = llama_32b();
    let batch = batch_of_tokens(3, 200_000);
    let free = planner.plan(&batch).unwrap();
    let used: Vec<Strategy> = vec!["1x<tp16>+12x<tp4>".parse().unwrap()];
    let of = |most| planner.plan_limited(&batch, RunLimit { most, used: &used }).unwrap();
    let known = of(1);
    let gain = 1.0 - free.iteration_ms.0 / known.iteration_ms.0;
    assert!((0.05..0.1).contains(&gain), "{gain}");
    assert_eq!(of(2).strategy, used[0]);
    assert_eq!(of(3).strategy, free.strategy);
}

#[test]
fn a_broken_limit_is_named() {
    let planner = llama_32b();
    let used: Vec<Strategy> = ["16x<tp4>", "8x<tp4,pp2>"].map(|text| text.parse().unwrap()).to_vec();
    let code = |lengths: &[i64], most| {
        planner.plan_limited(&Batch::new(lengths, None).unwrap(), RunLimit { most, used: &used }).unwrap_err().code()
    };
    assert_eq!(code(&[900], 0), "argument_invalid");
    assert_eq!(code(&[900], 1), "argument_invalid");
    assert_eq!(code(&[20_000], 2), "sequence_too_long");
    assert_eq!(code(&[50_000], 3), "sequence_too_long");
    let foreign: Vec<Strategy> = vec!["32x<tp4>".parse().unwrap()];
    let limit = RunLimit { most: 2, used: &foreign };
    let error = planner.plan_limited(&Batch::new(&[900], None).unwrap(), limit).unwrap_err();
    assert_eq!(error.code(), "strategy_unplaceable");
    assert_eq!(planner.longest_admitted(), Tokens(43_520));
}
