//! Valid plans with deliberate faults, one for each code of the checker.

use std::collections::BTreeSet;

use hydraulis_core::batch::Batch;
use hydraulis_core::cost::{PerStage, Reliability, preset};
use hydraulis_core::pipeline::{finishes, instructions};
use hydraulis_core::plan::{BoundKind, Candidate, Outcome, Plan};
use hydraulis_core::search::Planner;
use hydraulis_core::spec::{Cluster, ContextKind, MemoryRule};
use hydraulis_core::{Millis, Tokens};
use proptest::prelude::*;

use crate::search::linked;
use crate::support::arbitrary::{any_case, cases};

/// Codes that no plan can provoke: the checker derives the instruction lists from stages and micro-batches alone, so
/// `schedule_hangs` reports a defect of that code, not of the plan. See the last test.
const UNPROVOKABLE: [&str; 1] = ["schedule_hangs"];

const LENGTHS: [i64; 12] = [31_000, 9_000, 7_000, 6_000, 5_000, 4_000, 900, 800, 700, 600, 500, 80];

fn planner(gpus: u32) -> Planner {
    let strategies = vec!["1x<tp16>+2x<tp4,pp2>+2x<tp4>".parse().unwrap()];
    let cluster = Cluster::new(gpus, 8).unwrap();
    Planner::new(preset("llama-32b-a800").unwrap(), cluster, Some(strategies)).unwrap()
}

fn batch() -> Batch {
    Batch::new(&LENGTHS, None).unwrap()
}

/// A change of a plan, and every code that the checker must report for it.
type Break = (&'static [&'static str], fn(&mut Plan));

/// Replica 0 is <tp16> on ranks 0 to 15, replicas 1 and 2 are <tp4,pp2> on 16 to 31, and 3 and 4 are <tp4> on 32 to 39.
const BREAKS: &[Break] = &[
    (&["batch_differs"], |plan| plan.batch = Batch::new(&LENGTHS, Some(&[50; 12])).unwrap()),
    (&["cluster_differs"], |plan| plan.cluster = Cluster::new(128, 8).unwrap()),
    (&["memory_differs"], |plan| plan.memory = MemoryRule::InFlight),
    (&["profile_differs"], |plan| plan.profile.push('2')),
    (&["candidate_wrong", "strategy_differs"], |plan| plan.strategy = "1x<tp16>+2x<tp4,pp2>+3x<tp4>".parse().unwrap()),
    (&["sequence_unknown"], |plan| plan.replicas[0].micro_batches[0].push(12)),
    (&["busy_time_wrong", "replica_time_wrong", "sequence_missing"], |plan| {
        let mut full = plan.replicas.iter_mut().flat_map(|replica| &mut replica.micro_batches);
        full.find(|micro_batch| micro_batch.len() > 1).unwrap().pop();
    }),
    (&["busy_time_wrong", "replica_time_wrong", "sequence_repeated"], |plan| {
        plan.replicas[4].micro_batches.push(vec![11]);
    }),
    (&["rank_count"], |plan| plan.replicas[4].ranks.extend(40..44)),
    (&["rank_unknown"], |plan| plan.replicas[4].ranks = (64..68).collect()),
    (&["rank_shared"], |plan| plan.replicas[4].ranks = plan.replicas[3].ranks.clone()),
    (&["stage_group_misaligned"], |plan| plan.replicas[4].ranks = vec![46, 47, 48, 49]),
    (&["stage_group_misaligned"], |plan| plan.replicas[4].ranks = vec![41, 42, 43, 44]),
    (&["stage_group_misaligned"], |plan| plan.replicas[4].ranks = vec![40, 41, 43, 42]),
    (&["context_differs"], |plan| plan.replicas[3].context = Some(ContextKind::Ring)),
    (&["reliability_differs"], |plan| plan.replicas[3].reliability = Some(Reliability { error: 0.01, factor: 1.0 })),
    (&["cap_wrong"], |plan| plan.replicas[3].cap_tokens = Tokens(7_809)),
    (&["busy_time_wrong", "micro_batch_empty", "replica_time_wrong"], |plan| {
        plan.replicas[3].micro_batches.push(Vec::new());
    }),
    (&["busy_time_wrong", "micro_batch_over_cap", "replica_time_wrong"], |plan| {
        let wide = std::mem::take(&mut plan.replicas[0].micro_batches);
        plan.replicas[0].micro_batches = std::mem::replace(&mut plan.replicas[3].micro_batches, wide);
    }),
    (&["busy_time_wrong"], |plan| plan.replicas[2].busy_ms = plan.replicas[2].busy_ms * 1.001),
    (&["replica_time_wrong"], |plan| {
        let quick = plan.replicas.iter_mut().min_by_key(|replica| replica.predicted_ms).unwrap();
        quick.predicted_ms = quick.predicted_ms * 1.000_001;
    }),
    (&["candidate_wrong", "iteration_time_wrong"], |plan| plan.iteration_ms = plan.iteration_ms * 1.000_001),
    (&["iteration_time_wrong", "replica_time_wrong"], |plan| {
        plan.replicas.iter_mut().for_each(|replica| replica.predicted_ms = Millis(f64::NAN));
    }),
    (&["bound_above_time"], |plan| plan.lower_bound.ms = plan.iteration_ms * 1.000_001),
    (&["candidate_wrong"], |plan| plan.candidates.clear()),
    (&["candidate_wrong"], |plan| plan.candidates[0].outcome = Outcome::Planned(plan.iteration_ms * 0.999)),
    (&["candidate_wrong"], |plan| plan.candidates[0].outcome = Outcome::Pruned(plan.iteration_ms)),
    (&["candidate_wrong"], |plan| {
        let other = "8x<tp8>".parse().unwrap();
        plan.candidates.push(Candidate { strategy: other, outcome: Outcome::Pruned(Millis(-1.0)) });
    }),
    (&["bound_above_time"], |plan| plan.lower_bound.ms = Millis::ZERO),
    (&["bound_sequence_wrong"], |plan| plan.lower_bound.kind = BoundKind::Sequence(11)),
    (&["bound_sequence_wrong"], |plan| plan.lower_bound.kind = BoundKind::Sequence(12)),
    (&["bound_above_time"], |plan| plan.lower_bound.ms = Millis(f64::NAN)),
    (&["scheme_unusable", "strategy_differs"], |plan| {
        // This scheme was measured and omitted from the profile.
        plan.replicas[3].scheme = "<tp2>".parse().unwrap();
        plan.replicas[3].ranks.truncate(2);
    }),
];

/// Under the in-flight limit two sequences of 100,000 tokens fit on one <tp8,pp4> with three empty micro-batches
/// between them.
const IN_FLIGHT_BREAKS: &[Break] = &[
    (&["memory_differs"], |plan| plan.memory = MemoryRule::PerMicroBatch),
    (&["busy_time_wrong", "replica_time_wrong", "in_flight_over_cap"], |plan| {
        plan.replicas[0].micro_batches.retain(|micro_batch| !micro_batch.is_empty());
    }),
    (&["busy_time_wrong", "replica_time_wrong", "in_flight_over_cap"], |plan| {
        drop(plan.replicas[1].micro_batches.remove(2));
    }),
    (&["busy_time_wrong", "micro_batch_empty", "replica_time_wrong"], |plan| {
        plan.replicas[0].micro_batches.insert(2, Vec::new());
    }),
    (&["busy_time_wrong", "micro_batch_empty", "replica_time_wrong"], |plan| {
        plan.replicas[0].micro_batches.push(Vec::new());
    }),
    (&["busy_time_wrong", "micro_batch_empty", "replica_time_wrong"], |plan| {
        plan.replicas[1].micro_batches.insert(0, Vec::new());
    }),
];

#[test]
fn each_broken_promise_of_the_in_flight_limit_is_reported_with_its_code() {
    let strategies = vec!["2x<tp8,pp4>".parse().unwrap()];
    let cluster = Cluster::new(64, 8).unwrap();
    let planner = Planner::new(preset("llama-32b-a800").unwrap(), cluster, Some(strategies)).unwrap();
    let planner = planner.with_memory(MemoryRule::InFlight);
    let batch = Batch::new(&[100_000; 4], None).unwrap();
    let plan = planner.plan(&batch).unwrap();
    assert_eq!(planner.check(&plan, &batch), []);
    for replica in &plan.replicas {
        assert_eq!(replica.micro_batches.iter().map(Vec::len).collect::<Vec<_>>(), [1, 0, 0, 0, 1]);
    }
    for (index, (codes, break_it)) in IN_FLIGHT_BREAKS.iter().enumerate() {
        let mut broken = plan.clone();
        break_it(&mut broken);
        let mut found: BTreeSet<&str> = planner.check(&broken, &batch).iter().map(|violation| violation.code).collect();
        found.remove("iteration_time_wrong");
        assert_eq!(found, codes.iter().copied().collect(), "break {index}");
    }
}

/// Stages of a measured profile take unequal times, and their memory follows from their own numbers.
#[test]
fn the_in_flight_limit_follows_from_micro_batches_and_not_from_their_times() {
    for (activations, longest) in [([2e6, 1e6], 39_936), ([2e6, 1.5e6], 19_968)] {
        let mut profile = preset("llama-32b-a800").unwrap();
        profile.schemes.retain(|entry| entry.scheme.to_string() == "<tp8,pp2>");
        profile.schemes[0].stage_multipliers = Some(vec![0.9, 1.1]);
        profile.schemes[0].resident_bytes = PerStage::each(vec![22_881_075_200; 2]);
        profile.schemes[0].activation_bytes_per_token = PerStage::each(activations.to_vec());
        let strategies = vec!["4x<tp8,pp2>".parse().unwrap()];
        let planner = Planner::new(profile, Cluster::new(64, 8).unwrap(), Some(strategies)).unwrap();
        let planner = planner.with_memory(MemoryRule::InFlight);
        assert_eq!(planner.longest_admitted(), Tokens(longest), "{activations:?}");
        let batch = Batch::new(&[i64::try_from(longest).unwrap(); 8], None).unwrap();
        let plan = planner.plan(&batch).unwrap();
        assert_eq!(planner.check(&plan, &batch), [], "{activations:?}");
    }
}

#[test]
fn each_broken_promise_is_reported_with_its_code() {
    let (planner, batch) = (planner(64), batch());
    let plan = planner.plan(&batch).unwrap();
    assert_eq!(planner.check(&plan, &batch), []);
    for (index, (codes, break_it)) in BREAKS.iter().enumerate() {
        let mut broken = plan.clone();
        break_it(&mut broken);
        let found: BTreeSet<&str> = planner.check(&broken, &batch).iter().map(|violation| violation.code).collect();
        assert_eq!(found, codes.iter().copied().collect(), "break {index}");
    }
}

#[test]
fn every_code_of_the_checker_is_provoked() {
    let source = include_str!("../../src/check/plan.rs");
    let is_code = |text: &&str| text.contains('_') && text.bytes().all(|c| c == b'_' || c.is_ascii_lowercase());
    let known: BTreeSet<&str> = source.split('"').skip(1).step_by(2).filter(is_code).collect();
    assert!(known.len() >= 15, "{known:?}");
    let provoked = BREAKS.iter().chain(IN_FLIGHT_BREAKS).flat_map(|(codes, _)| codes.iter().copied());
    let provoked = provoked.chain(linked::BREAKS.iter().map(|(code, _)| *code));
    assert_eq!(provoked.chain(UNPROVOKABLE).collect::<BTreeSet<_>>(), known);
}

#[test]
fn no_number_of_stages_and_micro_batches_deadlocks() {
    for (stages, micro_batches) in (1..=12).flat_map(|stages| (0..=40).map(move |v| (stages, v))) {
        let mut lists: Vec<_> = (0..stages).map(|stage| instructions(stage, stages, micro_batches)).collect();
        assert!(finishes(&lists), "{stages} stages, {micro_batches} micro-batches");
        // The check itself works: a stage without its last exchange leaves its neighbour waiting.
        if stages > 1 && micro_batches > 0 {
            lists[stages - 1].pop();
            assert!(!finishes(&lists), "{stages} stages, {micro_batches} micro-batches");
        }
    }
}

proptest! {
    #![proptest_config(cases(128))]

    #[test]
    fn a_sequence_moved_dropped_or_doubled_never_passes(case in any_case(), pick in any::<prop::sample::Index>()) {
        let (planner, batch) = (case.planner(), case.batch());
        let plan = planner.plan(&batch).unwrap();
        let places: Vec<(usize, usize)> = plan.replicas.iter().enumerate()
            .flat_map(|(replica, entry)| {
                let full = (0..entry.micro_batches.len()).filter(|&place| !entry.micro_batches[place].is_empty());
                full.map(move |place| (replica, place))
            })
            .collect();
        let (replica, place) = places[pick.index(places.len())];
        let mut dropped = plan.clone();
        let id = dropped.replicas[replica].micro_batches[place].pop().unwrap();
        let codes = |plan: &Plan| planner.check(plan, &batch).iter().map(|broken| broken.code).collect::<Vec<_>>();
        prop_assert!(codes(&dropped).contains(&"sequence_missing"));
        let mut doubled = plan.clone();
        doubled.replicas[replica].micro_batches[place].push(id);
        prop_assert!(codes(&doubled).contains(&"sequence_repeated"));
        let mut moved = dropped;
        let other = (replica + 1) % moved.replicas.len();
        moved.replicas[other].micro_batches.push(vec![id]);
        let reported = codes(&moved);
        // Next to hours, the time of a nanosecond sequence is within the rounding of sums.
        let own = planner.cost().scheme(plan.replicas[replica].scheme).unwrap().sequence_ms(batch.tokens()[id]);
        let lost = other == replica || own.0 < 1e-6 * plan.iteration_ms.0.max(1.0);
        prop_assert!(lost || reported.contains(&"busy_time_wrong"), "{:?}", reported);
    }
}
