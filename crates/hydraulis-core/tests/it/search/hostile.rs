//! Batches from the smallest to the largest, on clusters from one GPU up: planned, checked, and equal on every run.

use std::thread;

use hydraulis_core::batch::Batch;
use hydraulis_core::cost::{PRESETS, preset};
use hydraulis_core::search::Planner;
use hydraulis_core::spec::Cluster;
use proptest::prelude::*;

use crate::cost::presets::log_normal;
use crate::support::arbitrary::{any_case, cases};

/// Numbers of threads that plan at once.
const THREADS: [usize; 3] = [1, 2, 8];

/// The bytes of a checked plan; the planner admits the batch.
fn planned(planner: &Planner, lengths: &[i64]) -> String {
    let batch = Batch::new(lengths, None).unwrap();
    let plan = planner.plan(&batch).unwrap();
    assert_eq!(planner.check(&plan, &batch), []);
    assert!(plan.lower_bound.ms <= plan.iteration_ms, "{:?} {:?}", plan.lower_bound, plan.iteration_ms);
    assert!(plan.iteration_ms.0.is_finite());
    plan.to_json()
}

/// The bytes of each thread's plan, from one planner at the same time.
fn planned_at_once(planner: &Planner, lengths: &[i64], threads: usize) -> Vec<String> {
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(|| planned(planner, lengths))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Batches at the limits of a planner that admits `longest` tokens.
fn hostile_batches(longest: i64) -> Vec<(&'static str, Vec<i64>)> {
    let mut giant = vec![1; 400];
    giant[399] = longest;
    vec![
        ("one sequence", vec![1]),
        ("one sequence as long as it may be", vec![longest]),
        ("all as long as they may be", vec![longest; 40]),
        ("all one token", vec![1; 500]),
        ("all equal", vec![longest / 3 + 1; 100]),
        ("one giant, given last", giant),
        ("just above half of what may be", vec![longest / 2 + 1; 60]),
        ("every power of two", (0..26).map(|power| 1 << power).filter(|&length| length <= longest).collect()),
    ]
}

/// Plans every hostile batch on every cluster, by the profile's list and by search.
fn plan_every_hostile_batch(name: &str) {
    let mut planners = 0;
    for (gpus, node) in [(16, 8), (24, 8), (64, 8), (64, 2), (64, 64)] {
        let cluster = Cluster::new(gpus, node).unwrap();
        let listed = Planner::new(preset(name).unwrap(), cluster.clone(), None);
        for planner in [listed, Planner::search(preset(name).unwrap(), cluster)] {
            // The profiles' lists are for nodes of eight, and the largest model needs more than 16 GPUs.
            let Ok(planner) = planner else { continue };
            planners += 1;
            let longest = i64::try_from(planner.longest_admitted().0).unwrap();
            for (batch, lengths) in hostile_batches(longest) {
                let json = planned(&planner, &lengths);
                // The properties below plan twice too, on any cluster.
                if (gpus, node) == (64, 8) {
                    assert_eq!(planned(&planner.clone(), &lengths), json, "{name} on {gpus}: {batch}");
                }
            }
        }
    }
    assert!(planners >= 7, "{name}: {planners} planners");
}

#[test]
fn every_preset_plans_every_hostile_batch() {
    // On threads, because this is the longest test.
    thread::scope(|scope| {
        for (name, _) in PRESETS {
            scope.spawn(move || plan_every_hostile_batch(name));
        }
    });
}

#[test]
fn a_hundred_thousand_sequences_are_planned() {
    let cluster = Cluster::new(64, 8).unwrap();
    let lengths: Vec<i64> = log_normal(3).take(100_000).collect();
    let strategies = vec!["4x<tp16>".parse().unwrap()];
    let planner = Planner::new(preset("llama-32b-a800").unwrap(), cluster, Some(strategies)).unwrap();
    planned(&planner, &lengths);
}

#[test]
fn threads_that_plan_at_once_get_the_same_bytes() {
    let cluster = Cluster::new(64, 8).unwrap();
    let lengths: Vec<i64> = log_normal(4).take(150).collect();
    for planner in [
        Planner::new(preset("llama-32b-a800").unwrap(), cluster.clone(), None).unwrap(),
        Planner::search(preset("llama-32b-a800").unwrap(), cluster).unwrap(),
    ] {
        let alone = planned(&planner, &lengths);
        for threads in THREADS {
            let plans = planned_at_once(&planner, &lengths, threads);
            assert_eq!(plans.len(), threads);
            assert!(plans.iter().all(|plan| *plan == alone), "{threads} threads");
        }
    }
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn random_inputs_give_the_same_bytes_on_every_thread(case in any_case()) {
        let search = case.searching();
        for planner in [case.planner(), search] {
            let alone = planned(&planner, &case.lengths);
            for threads in THREADS {
                let plans = planned_at_once(&planner, &case.lengths, threads);
                prop_assert!(plans.iter().all(|plan| *plan == alone), "{threads} threads");
            }
        }
    }
}
