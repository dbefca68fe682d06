//! Promises of every plan, for any profile, strategies and batch.

use std::cell::Cell;

use hydraulis_core::batch::Batch;
use hydraulis_core::cost::preset;
use hydraulis_core::explain::explain;
use hydraulis_core::plan::{Outcome, Plan};
use hydraulis_core::search::{Planner, RunLimit};
use hydraulis_core::spec::{self, Cluster, MemoryRule, Scheme, SearchBudget};
use hydraulis_core::{Cancellation, Error, ErrorKind, Tokens};
use proptest::prelude::*;

use crate::support::arbitrary::{any_case, cases};

/// Plans within this relative distance of each other count as equal.
const TIE: f64 = 1e-3;

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn every_plan_keeps_its_promises(case in any_case()) {
        let (planner, batch) = (case.planner(), case.batch());
        let plan = planner.plan(&batch).unwrap();
        let violations = planner.check(&plan, &batch);
        prop_assert!(violations.is_empty(), "{violations:?}");
        prop_assert!(plan.iteration_ms >= plan.lower_bound.ms, "{:?} {:?}", plan.iteration_ms, plan.lower_bound);
        let mut ids: Vec<usize> = plan.sequences().collect();
        ids.sort_unstable();
        prop_assert!(ids.into_iter().eq(0..batch.len()));
    }

    #[test]
    fn a_budget_of_zero_still_gives_a_valid_plan(case in any_case(), most in 1..=3_usize) {
        let none = SearchBudget { refinements: 0, candidates: 0, dual_solves: 0, exchanges: 0, ..SearchBudget::ONLINE };
        let batch = case.batch();
        let listed = case.planner().with_budget(none);
        let searching = case.searching().with_budget(none);
        let limited = searching.plan_limited(&batch, RunLimit { most, used: &case.strategies[..1] });
        // The one strategy used may be the last that is allowed, and too narrow for the batch.
        for plan in [listed.plan(&batch), searching.plan(&batch)].into_iter().map(Result::unwrap).chain(limited) {
            let violations = searching.check(&plan, &batch);
            prop_assert!(violations.is_empty(), "{violations:?}");
            prop_assert!(plan.iteration_ms >= plan.lower_bound.ms, "{:?} {:?}", plan.iteration_ms, plan.lower_bound);
        }
        let planned = |plan: &Plan| plan.candidates.iter().filter(|one| matches!(one.outcome, Outcome::Planned(_))).count();
        let found = searching.plan(&batch).unwrap();
        // Mixes without a whole replica in any solution are planned until one has it; under the in-flight limit by both
        // rules.
        let most = if case.memory == MemoryRule::InFlight { 2 } else { 1 };
        prop_assert!((1..=most).contains(&planned(&found)), "{:?}", found.candidates);
    }

    #[test]
    fn the_same_inputs_give_the_same_bytes(case in any_case()) {
        let json = case.planner().plan(&case.batch()).unwrap().to_json();
        prop_assert_eq!(&case.planner().plan(&case.batch()).unwrap().to_json(), &json);
        prop_assert_eq!(Plan::from_json(&json).unwrap().to_json(), json);
    }

    #[test]
    fn the_order_of_the_list_does_not_matter(case in any_case(), turn in 0..4_usize) {
        let batch = case.batch();
        let plan = case.planner().plan(&batch).unwrap();
        let mut turned = case.strategies.clone();
        let places = turned.len();
        turned.rotate_left(turn % places);
        turned.reverse();
        for strategy in &mut turned {
            let backwards: Vec<Scheme> = strategy.schemes().iter().rev().copied().collect();
            let same = spec::Strategy::new(backwards).unwrap();
            prop_assert_eq!(&same, &*strategy);
            *strategy = same;
        }
        let other = case.planner_of(turned).plan(&batch).unwrap();
        // Ties are broken by GPU-seconds and name, so even among equals the same strategy wins.
        prop_assert_eq!(plan.replicas, other.replicas);
        prop_assert_eq!(plan.iteration_ms, other.iteration_ms);
        prop_assert_eq!(plan.lower_bound.ms, other.lower_bound.ms);
    }

    #[test]
    fn a_further_strategy_is_never_worse(case in any_case()) {
        let batch = case.batch();
        let all = case.planner().plan(&batch).unwrap();
        for left_out in 0..case.strategies.len() {
            let mut fewer = case.strategies.clone();
            fewer.remove(left_out);
            // The remaining strategies may admit less than the batch needs, or nothing.
            if let Some(plan) = (!fewer.is_empty()).then(|| case.planner_of(fewer).plan(&batch).ok()).flatten() {
                prop_assert!(all.iteration_ms.0 <= plan.iteration_ms.0 * (1.0 + TIE));
                prop_assert!(all.lower_bound.ms <= plan.lower_bound.ms);
            }
        }
    }

    #[test]
    fn a_sequence_too_long_is_named_with_its_limit(case in any_case(), place in any::<prop::sample::Index>()) {
        let planner = case.planner();
        let limit = planner.longest_admitted();
        let mut lengths = case.lengths.clone();
        let too_long = place.index(lengths.len());
        lengths[too_long] = i64::try_from(limit.0).unwrap() + 1;
        let error = planner.plan(&Batch::new(&lengths, None).unwrap()).unwrap_err();
        prop_assert_eq!(error.code(), "sequence_too_long");
        // Numbers have digit separators.
        let text = error.to_string().replace(',', "");
        prop_assert!(text.contains(&format!("sequence {too_long} has {} tokens", limit.0 + 1)), "{}", text);
        let Error::SequenceTooLong { sequence, limit: named, .. } = error else { unreachable!() };
        prop_assert_eq!((sequence, named), (too_long, limit));
    }

    #[test]
    fn targets_never_change_a_plan(case in any_case()) {
        let targets: Vec<i64> = case.lengths.iter().map(|&length| length - length / 3).collect();
        let plain = case.planner().plan(&case.batch()).unwrap();
        let other = case.planner().plan(&Batch::new(&case.lengths, Some(&targets)).unwrap()).unwrap();
        prop_assert_eq!(plain.replicas, other.replicas);
    }
}

/// A sequence alone may have as many tokens as a full pipeline holds; with other sequences it does not fit, and one
/// token more fits nowhere.
#[test]
fn the_in_flight_limit_admits_sequences_that_fit_a_full_pipeline() {
    let by_cap = Planner::search(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap()).unwrap();
    let in_flight = by_cap.clone().with_memory(MemoryRule::InFlight);
    assert_eq!((by_cap.longest_admitted(), in_flight.longest_admitted()), (Tokens(43_520), Tokens(111_616)));
    let batch = |longest: i64| Batch::new(&[longest, longest, longest, 27_904, 9_000, 400, 400, 80], None).unwrap();
    assert_eq!(by_cap.plan(&batch(43_521)).unwrap_err().code(), "sequence_too_long");
    assert_eq!(in_flight.plan(&batch(111_617)).unwrap_err().code(), "sequence_too_long");
    let plan = in_flight.plan(&batch(111_616)).unwrap();
    assert_eq!(in_flight.check(&plan, &batch(111_616)), []);
    assert_eq!(plan.memory, MemoryRule::InFlight);
    assert!(by_cap.check(&plan, &batch(111_616)).iter().any(|broken| broken.code == "micro_batch_over_cap"));
    assert!(explain(&plan).contains("in-flight memory limit"));
}

/// For a scheme that does not fit on the cluster, the error is not about memory.
#[test]
fn a_refusal_names_a_scheme_that_can_be_placed() {
    let refused = |gpus| {
        let cluster = Cluster::new(gpus, 8).unwrap();
        let profile = preset("llama-32b-a800").unwrap();
        let by_search = Planner::search(profile.clone(), cluster.clone()).unwrap_err();
        assert_eq!(by_search, Planner::new(profile, cluster, None).unwrap_err());
        assert_eq!(by_search.kind(), ErrorKind::Infeasible);
        (by_search.code(), by_search.to_string())
    };
    let (code, message) = refused(4);
    assert_eq!(code, "scheme_too_large");
    assert!(
        message.starts_with("no scheme of cost profile 'llama-32b-a800'") && message.contains("4 GPUs"),
        "{message}"
    );
    assert!(message.contains("<tp2,pp2>"), "{message}");
    let (code, message) = refused(2);
    assert_eq!(code, "strategy_unplaceable");
    assert!(message.contains("more GPUs than the 2 of the cluster (the smallest is <pp4>, with 4)"), "{message}");
}

/// A batch that takes several candidates, each of them refined.
fn uneven() -> Batch {
    let lengths: Vec<i64> = (0..60_i64).map(|place| 100 + place * place * 37 % 9_001).collect();
    Batch::new(&lengths, None).unwrap()
}

/// Planners with a cancellation: over a list, by search, and by search in a limited run.
fn cancellable(kind: usize, batch: &Batch, cancellation: Cancellation) -> Result<Plan, Error> {
    let (profile, cluster) = (preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap());
    let strategies = ["8x<tp8>", "4x<tp16>", "16x<tp4>"].map(|text| text.parse().unwrap()).to_vec();
    match kind {
        0 => Planner::new(profile, cluster, Some(strategies)).unwrap().plan_cancellable(batch, cancellation),
        1 => Planner::search(profile, cluster).unwrap().plan_cancellable(batch, cancellation),
        _ => {
            let used = ["8x<tp8>".parse().unwrap()];
            let limit = RunLimit { most: 2, used: &used };
            Planner::search(profile, cluster).unwrap().plan_limited_cancellable(batch, limit, cancellation)
        }
    }
}

#[test]
fn a_cancellation_ends_the_planning_at_each_check() {
    let batch = uneven();
    for kind in 0..3 {
        let looks = Cell::new(0);
        let plan = cancellable(kind, &batch, &|| {
            looks.set(looks.get() + 1);
            Ok(())
        });
        assert!(plan.is_ok() && looks.get() > 10, "planner {kind} looks {} times", looks.get());
        for last in [1, looks.get() / 2, looks.get()] {
            let left = Cell::new(last);
            let stopped = cancellable(kind, &batch, &|| {
                left.set(left.get() - 1);
                if left.get() == 0 { Err(Error::Stopped) } else { Ok(()) }
            });
            assert_eq!((stopped.unwrap_err(), left.get()), (Error::Stopped, 0), "planner {kind}, look {last}");
        }
    }
}
