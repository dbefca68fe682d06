//! Plans with transfers.

use std::collections::BTreeSet;

use hydraulis_core::batch::Batch;
use hydraulis_core::cost::{ClassCost, preset};
use hydraulis_core::explain::explain;
use hydraulis_core::layout::{Parameter, ParameterTable, place, positions_of};
use hydraulis_core::pipeline::MakespanBuffers;
use hydraulis_core::plan::{Candidate, Outcome, Plan, PlannedTransfers};
use hydraulis_core::search::Planner;
use hydraulis_core::simulate::{Conditions, simulate_iteration};
use hydraulis_core::spec::{self, Cluster, LayerSplit, LinkRates};
use hydraulis_core::timing::{Link, ReplicaWork, StepTimeline, Traffic};
use hydraulis_core::{Millis, Tokens};
use proptest::prelude::*;

use crate::cost::presets::batch_of_tokens;
use crate::support::arbitrary::{any_case, cases, small_case};
use crate::support::oracle::best_packing;
use crate::support::world::table;

/// Plans within this relative distance of each other count as equal.
const TIE: f64 = 1e-3;

/// Links so slow that the transfers of a small model matter next to its iterations.
pub(crate) const SLOW: Traffic = Traffic {
    rates: LinkRates { gigabytes_per_s: 1e-5, gpu_gigabytes_per_s: 1e-4, message_us: 20.0 },
    parameter_bytes: 2,
    gradient_bytes: 4,
};

pub(crate) fn slow_link(table: ParameterTable) -> Link {
    Link::new(table, SLOW).unwrap()
}

/// 60 layers of 540 million parameters, in bf16 both ways, on nodes of 8 links of 200 Gb/s.
fn link_32b() -> Link {
    let layer = |layer_group| Parameter {
        name: format!("layer {layer_group}"),
        rows: 5_376,
        row_elements: 100_000,
        units: 5_376,
        layer_groups: vec![layer_group],
        trained: true,
    };
    let table = ParameterTable::new((1..=60).map(layer).collect(), LayerSplit::even(60)).unwrap();
    let traffic = Traffic {
        rates: LinkRates { gigabytes_per_s: 200.0, gpu_gigabytes_per_s: 200.0, message_us: 10.0 },
        parameter_bytes: 2,
        gradient_bytes: 2,
    };
    Link::new(table, traffic).unwrap()
}

/// A code of the checker, and the fault of a plan that it reports.
type Break = (&'static str, fn(&mut Plan));

/// Changes of a plan with transfers, each with the code that the checker must report.
pub(crate) const BREAKS: &[Break] = &[
    ("step_time_wrong", |plan| of(plan).step_ms += Millis(0.001)),
    ("transfer_time_wrong", |plan| of(plan).transfer_ms += Millis(0.001)),
    ("transfer_time_wrong", |plan| of(plan).alone_ms = Millis(f64::NAN)),
    ("moved_bytes_wrong", |plan| of(plan).moved_bytes += 1),
    ("transfers_differ", |plan| plan.transfers = None),
];

fn of(plan: &mut Plan) -> &mut PlannedTransfers {
    plan.transfers.as_mut().unwrap()
}

fn over(strategies: &[&str]) -> Planner {
    let strategies = strategies.iter().map(|text| text.parse().unwrap()).collect();
    let planner = Planner::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap(), Some(strategies));
    planner.unwrap().with_link(link_32b()).unwrap()
}

/// The least step of any strategy of the planner, assignment and ordered packing; infinite if some sequence fits nowhere.
fn least_step(planner: &Planner, link: &Link, tokens: &[Tokens]) -> Millis {
    let cost = planner.cost();
    let of_strategy = |strategy: &spec::Strategy| {
        let costs: Vec<&ClassCost> = strategy.schemes().iter().map(|&scheme| cost.scheme(scheme).unwrap()).collect();
        let ranks = place(strategy, cost.cluster()).unwrap();
        let number = costs.len();
        let assignments = 0..number.pow(u32::try_from(tokens.len()).unwrap());
        let step = |assignment: usize| {
            let mut sets = vec![0_usize; number];
            let mut left = assignment;
            for id in 0..tokens.len() {
                sets[left % number] |= 1 << id;
                left /= number;
            }
            let standing = (0..number).filter(|&replica| sets[replica] > 0);
            let standing = standing.map(|replica| (costs[replica].scheme(), ranks[replica].as_slice()));
            let positions = positions_of(standing, cost.cluster());
            let schemes = cost.profile().every_scheme();
            let transfers = link.transfer_times(&positions, None, cost.cluster(), &schemes).unwrap();
            let end = |replica: usize| {
                let cost = costs[replica];
                best_packing(sets[replica], tokens, cost, &|times| {
                    let work = ReplicaWork {
                        scheme: cost.scheme(),
                        times,
                        stage_multipliers: cost.stage_multipliers(),
                        forward_share: cost.forward_share(),
                    };
                    StepTimeline::new(link.split(), &transfers, [work], &mut MakespanBuffers::default()).end
                })
            };
            (0..number).map(end).max().unwrap()
        };
        assignments.map(step).min().unwrap()
    };
    planner.strategies().iter().map(of_strategy).min().unwrap()
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn plans_with_transfers_keep_their_promises(case in any_case(), table in table(), is_search in any::<bool>()) {
        let planner = if is_search { case.searching() } else { case.planner() };
        let planner = planner.with_link(slow_link(table)).unwrap();
        let batch = case.batch();
        let plan = planner.plan(&batch).unwrap();
        let violations = planner.check(&plan, &batch);
        prop_assert!(violations.is_empty(), "{violations:?}");
        let transfers = plan.transfers.unwrap();
        let at_most = (plan.iteration_ms + transfers.alone_ms) * (1.0 + 1e-9);
        prop_assert!(plan.lower_bound.ms <= transfers.step_ms && plan.iteration_ms <= transfers.step_ms);
        prop_assert!(transfers.step_ms <= at_most, "{transfers:?}, the iteration is {:?}", plan.iteration_ms);
        // The objective is the step.
        let gap = transfers.step_ms.0 / plan.lower_bound.ms.0 - 1.0;
        prop_assert!((plan.gap() - gap).abs() < 1e-12, "{} and {gap}", plan.gap());
        prop_assert_eq!(&planner.plan(&batch).unwrap(), &plan);
        prop_assert_eq!(Plan::from_json(&plan.to_json()).unwrap(), plan);
    }

    /// All assignments and ordered packings of few sequences: no step ends before the bound, over a list or of a search.
    #[test]
    fn link_and_memory_rule_are_given_in_either_order(case in any_case(), table in table()) {
        let search = Planner::search(case.profile.clone(), case.cluster.clone()).unwrap();
        let planners = [
            case.searching().with_link(slow_link(table.clone())).unwrap(),
            search.with_link(slow_link(table)).unwrap().with_memory(case.memory),
        ];
        let [one, other] = planners.map(|planner| planner.plan(&case.batch()).unwrap());
        prop_assert_eq!(one, other);
    }

    #[test]
    fn no_step_ends_before_its_bound(case in small_case(), table in table(), rate in 1e-6..1e-3_f64) {
        let batch = Batch::new(&case.lengths[..case.lengths.len().min(4)], None).unwrap();
        let rates = LinkRates { gigabytes_per_s: rate, ..SLOW.rates };
        let link = Link::new(table, Traffic { rates, ..SLOW }).unwrap();
        let planner = case.planner().with_link(link.clone()).unwrap();
        let least = least_step(&planner, &link, batch.tokens());
        for planner in [planner, case.searching().with_link(link).unwrap()] {
            let Ok(plan) = planner.plan(&batch) else { continue };
            prop_assert!(plan.lower_bound.ms <= least * (1.0 + 1e-9), "{:?} {least:?}", plan.lower_bound);
        }
    }

    /// The checker and the simulator derive the rounds by themselves.
    #[test]
    fn plans_in_rounds_keep_their_promises(
        case in any_case(), table in table(), seed in 0_i64..1_000, gathers in any::<bool>()
    ) {
        let mut profile = case.profile.clone();
        profile.schemes.retain(|entry| entry.scheme.pp() == 1);
        prop_assume!(!profile.schemes.is_empty());
        profile.sharding = if gathers { spec::ShardingKind::Parameters } else { spec::ShardingKind::Gradients };
        let planner = Planner::search(profile, case.cluster.clone());
        prop_assume!(planner.is_ok());
        let planner = planner.unwrap().with_link(slow_link(table.clone())).unwrap();
        let longest = i64::try_from(planner.longest_admitted().0.min(4_000)).unwrap();
        let lengths: Vec<i64> = (0..40).map(|number| 1 + (seed * 7_919 + number * 104_729) % longest).collect();
        let batch = Batch::new(&lengths, None).unwrap();
        let plan = planner.plan(&batch).unwrap();
        let violations = planner.check(&plan, &batch);
        prop_assert!(violations.is_empty(), "{violations:?}");
        let conditions = Conditions { link: Some(slow_link(table.clone())), ..Conditions::default() };
        let iteration = simulate_iteration(&plan, planner.cost(), &conditions).unwrap();
        let (planned, step) = (plan.transfers.unwrap(), iteration.step.unwrap());
        prop_assert!(step.end.is_close(planned.step_ms), "{:?} {planned:?}", step.end);
        prop_assert!(step.alone.is_close(planned.alone_ms));
        let rounds = plan.micro_batches_of_ranks().into_iter().max().unwrap();
        prop_assert_eq!(step.earlier_gradients.len(), rounds - 1);
        prop_assert_eq!(step.gathers.is_empty(), !gathers);
        for (timeline, replica) in step.timelines.iter().zip(&plan.replicas) {
            prop_assert_eq!(timeline.spans.len(), 2 * replica.micro_batches.len());
        }
    }

    /// The best step of each strategy by itself, and its bytes: none is shorter, and none equal with fewer bytes.
    #[test]
    fn no_strategy_of_a_list_has_a_shorter_step(case in any_case(), table in table()) {
        let (link, batch) = (slow_link(table), case.batch());
        let plan = case.planner().with_link(link.clone()).unwrap().plan(&batch).unwrap();
        let alone = |one: &spec::Strategy| {
            let planner = case.planner_of(vec![one.clone()]).with_link(link.clone()).unwrap();
            planner.plan(&batch).ok()
        };
        let others: Vec<Plan> = case.strategies.iter().filter_map(alone).collect();
        let least = others.iter().map(Plan::step_ms).min().unwrap();
        prop_assert!(plan.step_ms() <= least * (1.0 + TIE));
        let moved = |plan: &Plan| plan.transfers.unwrap().moved_bytes;
        // Under the in-flight limit the plan is the better of two, each chosen in this way.
        let is_one_rule = case.memory == spec::MemoryRule::PerMicroBatch;
        for other in others.iter().filter(|other| is_one_rule && other.step_ms() <= least * (1.0 + TIE)) {
            prop_assert!(moved(&plan) <= moved(other), "{} and {}", plan.strategy, other.strategy);
        }
        let is_shorter = |entry: &Candidate| matches!(entry.outcome, Outcome::Planned(ms) if ms < plan.step_ms());
        // The comparison ignores line breaks.
        let account = explain(&plan).split_whitespace().collect::<Vec<_>>().join(" ");
        let says_why = account.contains("ms, chosen: within 0.1 % of the shortest, and moves fewer bytes");
        prop_assert!(!is_one_rule || says_why == plan.candidates.iter().any(is_shorter), "{}", explain(&plan));
    }
}

/// The first micro-batch is the longest and the last the next longest, so that they overlap nearly all transfers.
#[test]
fn long_micro_batches_at_both_ends_overlap_transfers() {
    let batch = Batch::new(&[7_000, 7_000, 6_000, 6_000, 5_000, 5_000, 100, 100].repeat(8), None).unwrap();
    let planner = over(&["16x<tp4>"]);
    let plan = planner.plan(&batch).unwrap();
    let transfers = plan.transfers.unwrap();
    // Each node receives 7/8 of 32 billion parameters of two bytes at 200 GB/s, both ways.
    assert!((transfers.alone_ms.0 / 565.0 - 1.0).abs() < 0.05, "{transfers:?}");
    assert!(transfers.overlapped() > 0.9, "{transfers:?}");
    for replica in plan.replicas.iter().filter(|replica| replica.micro_batches.len() > 2) {
        let tokens: Vec<u64> =
            replica.micro_batches.iter().map(|ids| ids.iter().map(|&id| batch.tokens()[id].0).sum()).collect();
        let (&first, rest) = tokens.split_first().unwrap();
        let (&last, middle) = rest.split_last().unwrap();
        assert!(middle.iter().all(|&tokens| tokens <= last && last <= first), "{tokens:?}");
    }
}

/// A pipeline begins with its shortest micro-batch, and its second stage waits for half of the model: it gets less
/// work.
#[test]
fn replicas_that_wait_for_parameters_take_less_work() {
    let batch = batch_of_tokens(5, 500_000);
    let list = ["1x<tp16>+2x<tp4>+10x<tp2,pp2>"];
    let transfers = over(&list).plan(&batch).unwrap().transfers.unwrap();
    assert!(transfers.overlapped() > 0.9, "{transfers:?}");
    // The same strategy planned without transfers, and then simulated with them.
    let strategies = Some(list.iter().map(|text| text.parse().unwrap()).collect());
    let unaware = Planner::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap(), strategies).unwrap();
    let iteration_ms = unaware.plan(&batch).unwrap().iteration_ms;
    assert!(transfers.step_ms < iteration_ms + Millis(0.25 * transfers.alone_ms.0), "{transfers:?} {iteration_ms:?}");
}

/// Where transfers take longer than computation, few wide replicas are shorter than narrow ones and pipelines.
#[test]
fn a_search_over_slow_links_is_no_longer_than_equal_replicas() {
    let (profile, cluster) = (preset("llama-7b-a800").unwrap(), Cluster::new(64, 8).unwrap());
    let batch = batch_of_tokens(5, 300_000);
    for gigabytes_per_s in [5.0, 10.0, 25.0] {
        let rates = LinkRates { gigabytes_per_s, gpu_gigabytes_per_s: 100.0, message_us: 10.0 };
        let link = Link::of_profile(&profile, rates).unwrap();
        let equal = ["4x<tp16>", "8x<tp8>", "16x<tp4>", "32x<tp2>", "4x<tp8,pp2>", "8x<tp4,pp2>"];
        let list = Some(equal.map(|text| text.parse().unwrap()).to_vec());
        let listed = Planner::new(profile.clone(), cluster.clone(), list).unwrap().with_link(link.clone()).unwrap();
        let listed = listed.plan(&batch).unwrap();
        let plan = Planner::search(profile.clone(), cluster.clone()).unwrap().with_link(link).unwrap();
        let plan = plan.plan(&batch).unwrap();
        let best = (listed.step_ms(), listed.strategy.to_string());
        assert!(plan.step_ms() <= listed.step_ms() * (1.0 + TIE), "{} {:?} {best:?}", plan.strategy, plan.step_ms());
        assert!(plan.gap() < 0.05, "{gigabytes_per_s}: {}", plan.gap());
    }
}

/// Bounds and estimates leave transfers out on unequal ranks and with sharding; equal replicas are planned all the same.
#[test]
fn a_search_without_bounds_on_transfers_is_no_longer_than_equal_replicas() {
    let unequal = Cluster::new(32, 8).unwrap().with_rates([vec![1.0; 31], vec![0.95]].concat()).unwrap();
    let wide = ["2x<tp16>", "4x<tp8>", "8x<tp4>"];
    let mut moving_less = 0;
    for (gigabytes_per_s, tokens) in [(25.0, 30_000), (25.0, 60_000), (25.0, 100_000), (50.0, 60_000)] {
        let (profile, batch) = (preset("llama-32b-a800").unwrap(), batch_of_tokens(7, tokens));
        let rates = LinkRates { gigabytes_per_s, gpu_gigabytes_per_s: 200.0, message_us: 10.0 };
        let link = Link::of_profile(&profile, rates).unwrap();
        let admitted = wide.iter().filter_map(|text| {
            let planner = Planner::new(profile.clone(), unequal.clone(), Some(vec![text.parse().unwrap()])).unwrap();
            let plan = planner.with_link(link.clone()).unwrap().plan(&batch);
            plan.ok().map(|plan| (plan.step_ms(), plan.iteration_ms, *text))
        });
        let best = admitted.min().unwrap();
        let plan = Planner::search(profile.clone(), unequal.clone()).unwrap().with_link(link).unwrap();
        let plan = plan.plan(&batch).unwrap();
        assert!(plan.step_ms() <= best.0 * (1.0 + TIE), "{} {:?} {best:?}", plan.strategy, plan.step_ms());
        moving_less += usize::from(best.1 > plan.lower_bound.ms * 1.3);
    }
    assert!(moving_less > 0);
}

#[test]
fn candidates_are_stated_with_their_transfers() {
    let planner = over(&["8x<tp8>", "4x<tp16>", "16x<tp4>"]);
    let plan = planner.plan(&Batch::new(&[3_000; 64], None).unwrap()).unwrap();
    let stated = plan.candidates.iter().find(|one| one.strategy == plan.strategy).unwrap();
    assert_eq!(stated.outcome, Outcome::Planned(plan.step_ms()));
    assert!(plan.step_ms() > plan.iteration_ms);
}

#[test]
fn the_checker_reports_wrong_transfers() {
    let planner = over(&["1x<tp16>+2x<tp4,pp2>+2x<tp4>"]);
    let batch = Batch::new(&[31_000, 9_000, 7_000, 6_000, 5_000, 4_000, 900, 800, 700], None).unwrap();
    let plan = planner.plan(&batch).unwrap();
    assert_eq!(planner.check(&plan, &batch), []);
    let codes = |planner: &Planner, plan: &Plan| {
        planner.check(plan, &batch).iter().map(|broken| broken.code).collect::<BTreeSet<_>>()
    };
    for (code, break_it) in BREAKS {
        let mut broken = plan.clone();
        break_it(&mut broken);
        let other_time = (broken.step_ms() != plan.step_ms()).then_some("candidate_wrong");
        assert_eq!(codes(&planner, &broken), other_time.into_iter().chain([*code]).collect());
    }
    let unlinked = Planner::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap(), None).unwrap();
    assert_eq!(codes(&unlinked, &plan), BTreeSet::from(["transfers_differ"]));
}

#[test]
fn a_model_with_too_few_layers_is_refused() {
    let layer = |layer_group| Parameter {
        name: "w".into(),
        rows: 8,
        row_elements: 8,
        units: 8,
        layer_groups: vec![layer_group],
        trained: true,
    };
    let link = Link::new(ParameterTable::new(vec![layer(1)], LayerSplit::even(1)).unwrap(), SLOW).unwrap();
    let searching = Planner::search(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap()).unwrap();
    assert_eq!(searching.with_link(link).unwrap_err().code(), "scheme_model_mismatch");
}
