//! Plans for ranks of different speed and memory.

use hydraulis_core::batch::Batch;
use hydraulis_core::check::check;
use hydraulis_core::cost::{CostModel, CostProfile, OtherDevice, preset};
use hydraulis_core::explain::explain;
use hydraulis_core::layout::{OptimizerShards, ParameterTable};
use hydraulis_core::plan::Plan;
use hydraulis_core::search::Planner;
use hydraulis_core::simulate::{Conditions, simulate_iteration};
use hydraulis_core::spec::{Cluster, LinkRates, MemoryRule, Scheme};
use hydraulis_core::timing::Link;
use proptest::prelude::*;
use serde_json::json;

use crate::support::arbitrary::{cases, small_mixed_case};
use crate::support::oracle::optimum;

/// Sums of the same terms in different orders differ by less.
const ROUNDING: f64 = 1e-9;

proptest! {
    #![proptest_config(cases(64))]

    /// The optimum is over all placements too: the bound holds for each of them.
    #[test]
    fn bound_optimum_and_plan_are_in_ascending_order_on_ranks_of_any_rate(case in small_mixed_case()) {
        let (planner, searching, batch) = (case.planner(), case.searching(), case.batch());
        let optimum = optimum(&planner, batch.tokens());
        let plan = planner.plan(&batch).unwrap();
        prop_assert!(plan.lower_bound.ms <= optimum, "bound {:?}, optimum {optimum:?}", plan.lower_bound);
        prop_assert!(
            optimum.0 <= plan.iteration_ms.0 * (1.0 + ROUNDING),
            "optimum {optimum:?}, plan {:?}",
            plan.iteration_ms
        );
        prop_assert_eq!(planner.check(&plan, &batch), []);
        let found = searching.plan(&batch).unwrap();
        prop_assert!(found.lower_bound.ms <= optimum, "bound {:?}, optimum {optimum:?}", found.lower_bound);
        prop_assert_eq!(searching.check(&found, &batch), []);
        prop_assert_eq!(&searching.plan(&batch).unwrap(), &found);
    }

    #[test]
    fn the_simulated_iteration_takes_the_planned_time_on_ranks_of_any_rate(case in small_mixed_case()) {
        let (planner, batch) = (case.planner(), case.batch());
        let plan = planner.plan(&batch).unwrap();
        let run = simulate_iteration(&plan, planner.cost(), &Conditions::default()).unwrap();
        prop_assert!((run.end.0 / plan.iteration_ms.0 - 1.0).abs() <= ROUNDING, "{:?} {:?}", run.end, plan.iteration_ms);
        let spent = run.end.0 * f64::from(case.cluster.gpus());
        prop_assert!((run.gpu_time.total().0 / spent - 1.0).abs() <= ROUNDING, "{:?} {spent}", run.gpu_time);
    }
}

fn cluster(slow: &[(usize, f64)]) -> Cluster {
    let mut rates = vec![1.0; 64];
    for &(rank, rate) in slow {
        rates[rank] = rate;
    }
    Cluster::new(64, 8).unwrap().with_rates(rates).unwrap()
}

fn planned(cluster: Cluster, strategies: &[&str], lengths: &[i64]) -> (Planner, Batch, Plan) {
    let strategies = strategies.iter().map(|text| text.parse().unwrap()).collect();
    let planner = Planner::new(preset("llama-32b-a800").unwrap(), cluster, Some(strategies)).unwrap();
    let batch = Batch::new(lengths, None).unwrap();
    let plan = planner.plan(&batch).unwrap();
    assert_eq!(planner.check(&plan, &batch), []);
    (planner, batch, plan)
}

fn many() -> Vec<i64> {
    (0..400).map(|i| 600 + i % 11 * 150).collect()
}

/// One of 16 replicas computes at a third of the speed: with a third of the work of the others the iteration is longer
/// by 4 to 5 %, with an equal share it would be three times as long.
#[test]
fn a_slow_replica_gets_less_work() {
    let (_, _, usual) = planned(cluster(&[]), &["16x<tp4>"], &many());
    let (_, batch, slow) = planned(cluster(&[(22, 1.0 / 3.0)]), &["16x<tp4>"], &many());
    let ratio = slow.iteration_ms.0 / usual.iteration_ms.0;
    assert!(ratio > 1.0 && ratio < 1.1, "{ratio}");
    let last = slow.replicas.last().unwrap();
    assert_eq!(last.ranks, [20, 21, 22, 23]);
    let share = last.tokens(&batch).as_f64() / batch.total_tokens().as_f64();
    // A third of 1 part in 15 1/3.
    assert!((0.018..0.025).contains(&share), "{share}");
    assert!(slow.gap() < usual.gap() + 0.05, "{} {}", slow.gap(), usual.gap());
}

/// The checker derives times from the ranks: a plan for equal ranks is none for slow ones, wherever these are used.
#[test]
fn the_checker_uses_rates() {
    let (_, batch, mut plan) = planned(cluster(&[]), &["15x<tp4>"], &many());
    let slow = Planner::search(preset("llama-32b-a800").unwrap(), cluster(&[(0, 0.5)])).unwrap();
    plan.cluster = slow.cost().cluster().clone();
    let codes = |plan: &Plan| check(plan, &batch, slow.cost(), None).iter().map(|one| one.code).collect::<Vec<_>>();
    assert_eq!(codes(&plan), ["busy_time_wrong", "replica_time_wrong"]);
    plan.replicas[0].ranks = vec![60, 61, 62, 63];
    assert!(codes(&plan).is_empty(), "{:?}", codes(&plan));
}

/// The replica that ends last has one long sequence: ranks of double speed halve its time.
#[test]
fn the_widest_replica_is_on_the_fastest_ranks() {
    let fast: Vec<(usize, f64)> = (40..56).map(|rank| (rank, 2.0)).collect();
    let lengths = [32_000, 500, 500, 500];
    let (_, _, usual) = planned(cluster(&[]), &["1x<tp16>+12x<tp4>"], &lengths);
    let (_, _, plan) = planned(cluster(&fast), &["1x<tp16>+12x<tp4>"], &lengths);
    assert_eq!(plan.replicas[0].ranks, (40..56).collect::<Vec<_>>());
    assert!(plan.iteration_ms.is_close(usual.iteration_ms * 0.5), "{:?} {:?}", plan.iteration_ms, usual.iteration_ms);
    assert!(plan.gap() < 1e-6, "{}", plan.gap());
}

/// Sixty sequences fill fifteen replicas evenly; one of them would take ten times as long on the slow ranks.
#[test]
fn slow_ranks_stay_idle_if_the_iteration_is_shorter() {
    let (_, _, usual) = planned(cluster(&[]), &["16x<tp4>"], &[7_000; 60]);
    let (_, _, plan) = planned(cluster(&[(9, 0.1)]), &["16x<tp4>"], &[7_000; 60]);
    let idle = plan.replicas.iter().find(|replica| replica.ranks.contains(&9)).unwrap();
    assert!(idle.micro_batches.is_empty(), "{idle:?}");
    assert!(explain(&plan).contains("rates 0.10 to 1.00, 4 idle"), "{}", explain(&plan));
    assert!(plan.iteration_ms.is_close(usual.iteration_ms), "{:?} {:?}", plan.iteration_ms, usual.iteration_ms);
}

/// One slow rank in a pipeline of all 64 would slow every stage: a search leaves it to a replica with little work.
#[test]
fn a_search_loses_little_to_one_slow_rank() {
    let plan = |cluster: Cluster| {
        let planner = Planner::search(preset("llama-32b-a800").unwrap(), cluster).unwrap();
        let batch = Batch::new(&many(), None).unwrap();
        let plan = planner.plan(&batch).unwrap();
        assert_eq!(planner.check(&plan, &batch), []);
        plan
    };
    let (usual, slow) = (plan(cluster(&[])), plan(cluster(&[(30, 0.25)])));
    // Four of 64 ranks at a quarter of their speed have 3/64 of all work less.
    assert!(slow.iteration_ms.0 < 1.1 * usual.iteration_ms.0, "{:?} {:?}", slow.iteration_ms, usual.iteration_ms);
    assert!(slow.gap() < 0.1, "{}", slow.gap());
}

/// The step is simulated with slow stages as the checker derives it, and owners do not depend on rates.
#[test]
fn steps_with_transfers_use_rates() {
    let profile = preset("llama-32b-a800").unwrap();
    let slow = cluster(&[(3, 0.5), (17, 0.7), (63, 1.4)]);
    let rates = LinkRates { gigabytes_per_s: 50.0, gpu_gigabytes_per_s: 200.0, message_us: 10.0 };
    let link = Link::of_profile(&profile, rates).unwrap();
    let strategies = ["2x<tp8,pp4>", "1x<tp16>+6x<tp4,pp2>"].map(|text| text.parse().unwrap()).to_vec();
    let planner = Planner::new(profile, slow, Some(strategies)).unwrap().with_link(link.clone()).unwrap();
    let batch = Batch::new(&many(), None).unwrap();
    let plan = planner.plan(&batch).unwrap();
    assert_eq!(planner.check(&plan, &batch), []);
    let conditions = Conditions { link: Some(link), ..Conditions::default() };
    let run = simulate_iteration(&plan, planner.cost(), &conditions).unwrap();
    assert!(run.step_end().is_close(plan.step_ms()), "{:?} {:?}", run.step_end(), plan.step_ms());
}

#[test]
fn owners_depend_on_rates_only_where_stages_may_change_places() {
    let table = ParameterTable::from_model(preset("llama-32b-a800").unwrap().model.as_ref().unwrap()).unwrap();
    let slow = cluster(&[(3, 0.5), (17, 0.7)]);
    let owners = |cluster: &Cluster, schemes: &[&str]| {
        let schemes: Vec<Scheme> = schemes.iter().map(|text| text.parse().unwrap()).collect();
        OptimizerShards::new(&table, cluster, &schemes).unwrap()
    };
    for schemes in [&["<tp4>"][..], &["<tp4>", "<tp8>"], &["<tp4>", "<tp16>", "<tp4,pp2>"]] {
        assert_eq!(owners(&slow, schemes), owners(&cluster(&[]), schemes), "{schemes:?}");
    }
    // Owners in the replica groups of fixed stages would lack some of their own elements.
    assert_eq!(owners(&slow, &["<tp4,pp2>"]), owners(&slow, &["<tp4,pp2>", "<tp4>"]));
}

/// The widest replica is on the slow node, whose memory alone admits the longest sequence.
#[test]
fn replicas_are_placed_on_the_kind_of_ranks_that_suits_them() {
    let profile = preset("llama-7b-a800").unwrap();
    let large = profile.hardware.memory_bytes;
    let rates = (0..16).map(|rank| if rank < 8 { 2.0 } else { 1.0 }).collect();
    let memory = (0..16).map(|rank| if rank < 8 { large / 2 } else { large }).collect();
    let cluster = Cluster::new(16, 8).unwrap().with_rates(rates).unwrap().with_memory_bytes(memory).unwrap();
    let planner = Planner::new(profile, cluster, Some(vec!["1x<tp8>+4x<tp2>".parse().unwrap()])).unwrap();
    let caps: Vec<u64> = [0, 8]
        .map(|first| planner.cost().replica("<tp8>".parse().unwrap(), &(first..first + 8).collect::<Vec<_>>()))
        .map(|cost| cost.unwrap().cap().0)
        .into();
    assert_eq!(planner.longest_admitted().0, caps[1]);
    let on_fast = |plan: &Plan| plan.replicas[0].ranks[0] == 0;
    for (longest, expected) in [(caps[0], true), (caps[0] + 1, false), (caps[1], false)] {
        let lengths: Vec<i64> = (0..200).map(|_| 100).chain([i64::try_from(longest).unwrap()]).collect();
        let batch = Batch::new(&lengths, None).unwrap();
        let plan = planner.plan(&batch).unwrap();
        assert_eq!(planner.check(&plan, &batch), []);
        assert_eq!(on_fast(&plan), expected, "{longest} {caps:?}");
    }
}

/// 12 fast ranks of one memory, then 12 slow ranks of another device and memory, in nodes of four.
fn of_two_kinds(fast_memory: u64, slow_memory: u64) -> Cluster {
    let rates = (0..24).map(|rank| if rank < 12 { 1.0 } else { 0.5 }).collect();
    let memory = (0..24).map(|rank| if rank < 12 { fast_memory } else { slow_memory }).collect();
    let cluster = Cluster::new(24, 4).unwrap().with_rates(rates).unwrap().with_memory_bytes(memory).unwrap();
    cluster.with_devices((0..24).map(|rank| rank / 12).collect()).unwrap()
}

fn of_two_devices() -> CostProfile {
    let profile = preset("llama-7b-a800").unwrap();
    profile.clone().with_other_devices(vec![OtherDevice { rate: 0.5, profile }]).unwrap()
}

/// Where the wide replica is on the slow ranks, a pipeline is on ranks of both kinds: no other order admits the sequence.
#[test]
fn the_longest_sequence_may_need_a_pipeline_on_two_kinds() {
    let (cluster, gib) = (of_two_kinds(60 << 30, 96 << 30), 1_u64 << 30);
    let planner = Planner::new(of_two_devices(), cluster, Some(vec!["1x<tp8>+2x<tp4,pp2>".parse().unwrap()])).unwrap();
    let longest = i64::try_from(planner.longest_admitted().0).unwrap();
    let on_large = CostModel::new(of_two_devices(), of_two_kinds(96 * gib, 96 * gib));
    assert_eq!(planner.longest_admitted(), on_large.scheme("<tp8>".parse().unwrap()).unwrap().cap());
    let batch = Batch::new(&[longest, 500, 500], None).unwrap();
    let plan = planner.plan(&batch).unwrap();
    assert_eq!(planner.check(&plan, &batch), []);
    assert_eq!(planner.plan(&Batch::new(&[longest + 1], None).unwrap()).unwrap_err().code(), "sequence_too_long");
}

/// On 26 GiB no rank of <tp2> has room for a token, so the two replicas must be on the slow ranks.
#[test]
fn a_list_may_have_strategies_that_fit_in_another_order_only() {
    let cluster = of_two_kinds(26 << 30, 96 << 30);
    let listed =
        |strategy: &str| Planner::new(of_two_devices(), cluster.clone(), Some(vec![strategy.parse().unwrap()]));
    let batch = Batch::new(&[500; 30], None).unwrap();
    let plan = listed("2x<tp2>").unwrap().plan(&batch).unwrap();
    assert!(plan.replicas.iter().all(|replica| replica.ranks[0] >= 12), "{:?}", plan.replicas);
    assert_eq!(listed("7x<tp2>").err().map(|error| error.code()), Some("scheme_too_large"));
    // Without a list, mixes that have no room are left out.
    let planner = Planner::new(of_two_devices(), cluster.clone(), None).unwrap();
    let plan = planner.plan(&batch).unwrap();
    assert_eq!(planner.check(&plan, &batch), []);
}

/// Of two nodes of equal speed, the one of less memory may be better for the wide replica.
#[test]
fn kinds_of_equal_speed_are_taken_in_either_order() {
    let plan = |rate: f64| {
        let rates = (0..16).map(|rank| if rank < 8 { 1.0 } else { rate }).collect();
        let memory = (0..16).map(|rank| if rank < 8 { 48 << 30 } else { 80 << 30 }).collect();
        let cluster = Cluster::new(16, 8).unwrap().with_rates(rates).unwrap().with_memory_bytes(memory).unwrap();
        let strategies = Some(vec!["1x<tp8>+4x<tp2>".parse().unwrap()]);
        let planner = Planner::new(preset("llama-7b-a800").unwrap(), cluster, strategies).unwrap();
        let lengths: Vec<i64> = [9_000; 60].into_iter().chain([300; 100]).collect();
        planner.plan(&Batch::new(&lengths, None).unwrap()).unwrap().iteration_ms.0
    };
    assert!((plan(1.0) / plan(0.9999) - 1.0).abs() < 0.01, "{} {}", plan(1.0), plan(0.9999));
}

/// With the memory of the largest rank everywhere a stage has no room for three caps of 618 tokens. Where the ranks are,
/// the cap is 450, and each stage has room for three of these.
#[test]
fn the_bound_counts_with_an_in_flight_limit_that_smaller_ranks_alone_have() {
    let profile = json!({
        "format": "hydraulis.cost-profile/2",
        "name": "made-up",
        "source": "made up",
        "hardware": {"device": "none", "gpus_per_node": 3, "memory_bytes": 20_000},
        "memory": {"reserved_bytes": 0, "optimizer_bytes": 0, "token_multiple": 1},
        "schemes": [{
            "scheme": "<pp3>", "quadratic_ms_per_token2": 0.0, "linear_ms_per_token": 0.01, "fixed_ms": 100.0,
            "forward_share": 0.3, "resident_bytes": [1802, 110, 30],
            "activation_bytes_per_token": [29.4066, 20.9268, 10.9538],
        }],
    });
    let profile = CostProfile::from_json(&profile.to_string()).unwrap();
    let cluster = Cluster::new(3, 3).unwrap().with_memory_bytes(vec![15_055, 20_000, 18_257]).unwrap();
    let planner = Planner::new(profile, cluster, Some(vec!["1x<pp3>".parse().unwrap()])).unwrap();
    let planner = planner.with_memory(MemoryRule::InFlight);
    assert_eq!(planner.longest_admitted().0, 3 * 450);
    let batch = Batch::new(&[600, 600], None).unwrap();
    let plan = planner.plan(&batch).unwrap();
    assert_eq!(planner.check(&plan, &batch), []);
    // Both in one micro-batch of more than the cap, on each of three stages.
    assert!((plan.iteration_ms.0 - 3.0 * (100.0 + 0.01 * 1_200.0)).abs() < ROUNDING * 336.0, "{:?}", plan.iteration_ms);
    assert!(plan.lower_bound.ms <= plan.iteration_ms, "{:?}", plan.lower_bound);
    let longest = Batch::new(&[1_350], None).unwrap();
    assert_eq!(planner.check(&planner.plan(&longest).unwrap(), &longest), []);
}

#[test]
fn a_plan_for_other_ranks_names_both_clusters() {
    let told = |planned: Cluster, own: Cluster| {
        let planner = |cluster| Planner::new(preset("llama-32b-a800").unwrap(), cluster, None).unwrap();
        let batch = Batch::new(&[500; 30], None).unwrap();
        let violations = planner(own).check(&planner(planned).plan(&batch).unwrap(), &batch);
        violations.into_iter().find(|violation| violation.code == "cluster_differs").unwrap().detail
    };
    assert_eq!(
        told(cluster(&[(3, 0.5)]), cluster(&[])),
        "planned for 64 GPUs in nodes of 8, of rates 0.5 to 1, not for 64 GPUs in nodes of 8"
    );
    assert_eq!(
        told(cluster(&[(3, 0.5)]), cluster(&[(9, 0.5)])),
        "planned for ranks of other rates, memory or devices, not for 64 GPUs in nodes of 8, of rates 0.5 to 1"
    );
}
