//! The simulator compared to closed forms, and to a direct simulation that moves from event to event.

use std::collections::VecDeque;

use hydraulis_core::cost::CostModel;
use hydraulis_core::layout::ParameterTable;
use hydraulis_core::pipeline::{Compute, StageTimes, Timeline, simulate, simulate_over};
use hydraulis_core::plan::{Plan, predicted_timeline};
use hydraulis_core::simulate::{Conditions, Iteration, Network, Slowdowns, Wire, rank_memory, simulate_iteration};
use hydraulis_core::spec::{Cluster, LinkRates, MemoryRule};
use hydraulis_core::timing::{Link, Traffic};
use hydraulis_core::{Millis, Tokens};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::search::linked::{SLOW, slow_link};
use crate::support::arbitrary::{Case, any_case, cases};
use crate::support::world::table;

fn stage(forward: &[f64], backward: &[f64]) -> StageTimes {
    let times = |list: &[f64]| list.iter().copied().map(Millis).collect();
    StageTimes { forward: times(forward), backward: times(backward) }
}

/// `stages` equal stages of `micro_batches` equal micro-batches: forward 1, backward 2.
fn even(stages: usize, micro_batches: usize) -> Vec<StageTimes> {
    vec![stage(&vec![1.0; micro_batches], &vec![2.0; micro_batches]); stages]
}

fn float(n: usize) -> f64 {
    f64::from(u32::try_from(n).unwrap())
}

/// One stage of the direct simulation.
struct Plain<'a> {
    times: &'a StageTimes,
    /// Computations still to run.
    order: VecDeque<Compute>,
    /// Time at which it is free.
    free: f64,
}

/// The order of the textbook, written independently.
fn textbook(stage: usize, stages: usize, micro_batches: usize) -> VecDeque<Compute> {
    let warm = (stages - 1 - stage).min(micro_batches);
    let mut order: VecDeque<Compute> = (0..warm).map(Compute::Forward).collect();
    for n in 0..micro_batches {
        order.extend((warm + n < micro_batches).then_some(Compute::Forward(warm + n)));
        order.push_back(Compute::Backward(n));
    }
    order
}

/// The ends of all computations, found by repeated search for the earliest one that can start: slow, and without
/// instruction lists and exchanges.
fn plain_ends(stages: &[StageTimes], travel: &[Vec<Millis>]) -> Vec<(usize, Compute, f64)> {
    let (p, v) = (stages.len(), stages[0].forward.len());
    let mut plain: Vec<Plain> =
        stages.iter().enumerate().map(|(s, times)| Plain { times, order: textbook(s, p, v), free: 0.0 }).collect();
    let mut ended: Vec<(usize, Compute, f64)> = Vec::new();
    // The time at which each wire of a boundary and direction is free, and the arrivals of its messages.
    let mut wires = vec![[0.0_f64; 2]; p];
    let mut arrived: Vec<(usize, Compute, f64)> = Vec::new();
    loop {
        let start = |s: usize, stage: &Plain| -> Option<(f64, usize)> {
            let next = *stage.order.front()?;
            let needs_message = match next {
                Compute::Forward(_) => s > 0,
                Compute::Backward(_) => s + 1 < p,
            };
            let there = if needs_message {
                arrived.iter().find(|(to, compute, _)| (*to, *compute) == (s, next))?.2
            } else {
                0.0
            };
            Some((stage.free.max(there), s))
        };
        let ready = plain.iter().enumerate().filter_map(|(s, stage)| start(s, stage));
        let Some((from, s)) = ready.min_by(|one, other| one.0.total_cmp(&other.0)) else { return ended };
        let compute = plain[s].order.pop_front().unwrap();
        let (duration, micro_batch, to) = match compute {
            Compute::Forward(m) => (plain[s].times.forward[m].0, m, Some(s + 1).filter(|&next| next < p)),
            Compute::Backward(m) => (plain[s].times.backward[m].0, m, s.checked_sub(1)),
        };
        let end = from + duration;
        plain[s].free = end;
        ended.push((s, compute, end));
        if let Some(to) = to {
            let (boundary, direction) = (s.min(to), usize::from(to < s));
            let on_its_way = travel.get(boundary).map_or(0.0, |times| times[micro_batch].0);
            wires[boundary][direction] = wires[boundary][direction].max(end) + on_its_way;
            arrived.push((to, compute, wires[boundary][direction]));
        }
    }
}

fn ends(timeline: &Timeline) -> Vec<(usize, Compute, f64)> {
    timeline.spans.iter().map(|span| (span.stage, span.compute, span.end.0)).collect()
}

/// Sorts by stage; a stage's own ends are in order already.
fn by_stage(mut ends: Vec<(usize, Compute, f64)>) -> Vec<(usize, Compute, f64)> {
    ends.sort_by_key(|&(stage, _, _)| stage);
    ends
}

#[derive(Clone, Debug)]
struct Pipeline {
    stages: Vec<StageTimes>,
    travel: Vec<Vec<Millis>>,
}

fn pipeline() -> impl Strategy<Value = Pipeline> {
    (1..7_usize, 0..14_usize, any::<bool>()).prop_flat_map(|(p, v, messages)| {
        // Some whole numbers, so that many events happen at the same time.
        let time = || prop_oneof![(0..5_u32).prop_map(f64::from), 0.01..50.0_f64];
        let travel = vec(vec(time(), v), if messages { p - 1 } else { 0 });
        (vec((vec(time(), v), vec(time(), v)), p), travel).prop_map(|(stages, travel)| Pipeline {
            stages: stages.iter().map(|(forward, backward)| stage(forward, backward)).collect(),
            travel: travel.into_iter().map(|times| times.into_iter().map(Millis).collect()).collect(),
        })
    })
}

proptest! {
    #![proptest_config(cases(300))]

    /// The comparison is exact: both add the same numbers.
    #[test]
    fn lists_and_events_agree_to_the_bit(case in pipeline()) {
        let timeline = simulate_over(&case.stages, &case.travel);
        prop_assert_eq!(ends(&timeline), by_stage(plain_ends(&case.stages, &case.travel)));
    }
}

#[test]
fn one_stage_takes_the_sum_of_its_micro_batches() {
    let times = stage(&[1.0, 0.5, 4.0], &[2.0, 1.5, 8.0]);
    assert_eq!(simulate(&[times]).makespan(), Millis(17.0));
}

#[test]
fn equal_micro_batches_take_the_textbooks_time() {
    for (p, v) in (1..9).flat_map(|p| (1..20).map(move |v| (p, v))) {
        assert_eq!(simulate(&even(p, v)).makespan(), Millis(3.0 * float(v + p - 1)), "{p} stages, {v} micro-batches");
    }
}

/// From `p` micro-batches on, the last stage starts after `p - 1` forwards and then never waits; its last backward then
/// passes the other stages.
#[test]
fn a_slow_last_stage_takes_the_closed_form() {
    let slow = 1.3;
    for (p, v) in (1..7).flat_map(|p| (p..20).map(move |v| (p, v))) {
        let mut stages = even(p, v);
        stages[p - 1] = stage(&vec![slow; v], &vec![2.0 * slow; v]);
        let expected = 3.0 * slow * float(v) + 3.0 * float(p - 1);
        let simulated = simulate(&stages).makespan();
        assert!(simulated.is_close(Millis(expected)), "{p} stages, {v} micro-batches: {} {expected}", simulated.0);
    }
}

/// One micro-batch crosses each boundary twice.
#[test]
fn messages_of_one_micro_batch_add_up() {
    let timeline = simulate_over(&even(4, 1), &[vec![Millis(0.5)], vec![Millis(0.25)], vec![Millis(4.0)]]);
    assert_eq!(timeline.makespan(), Millis(4.0 * 3.0 + 2.0 * 4.75));
}

/// Two messages at once share the wire of their direction: the second leaves when the first arrives.
#[test]
fn messages_of_one_direction_follow_each_other() {
    let stages = [stage(&[1.0, 0.0, 0.0], &[1.0; 3]), stage(&[0.0; 3], &[0.0; 3]), stage(&[0.0; 3], &[9.0; 3])];
    let timeline = simulate_over(&stages, &[vec![Millis(2.0); 3], vec![Millis(0.0); 3]]);
    let arrivals: Vec<f64> = timeline.spans.iter().filter(|s| s.stage == 1).map(|s| s.start.0).take(2).collect();
    assert_eq!(arrivals, [3.0, 5.0]);
}

/// The cost model of a case's planner, and its plan.
fn planned(case: &Case) -> (CostModel, Plan) {
    let planner = case.planner();
    (planner.cost().clone(), planner.plan(&case.batch()).unwrap())
}

fn network(rate: f64, latency_ms: f64) -> Network {
    let wire = |gigabytes_per_s| Wire { gigabytes_per_s, latency_ms };
    Network::new(8_192.0, wire(10.0 * rate), wire(rate)).unwrap()
}

/// Whether the parts of all ranks' time add up to it, and none is negative.
fn adds_up(plan: &Plan, iteration: &Iteration) -> bool {
    let time = iteration.gpu_time;
    let parts = [time.compute, time.slower_rank, time.bubble, time.slower_replica, time.unused, time.transfers];
    let all = iteration.step_end() * f64::from(plan.cluster.gpus());
    time.total().is_close(all) && parts.iter().all(|&part| part.0 >= -1e-9 * all.0)
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn without_conditions_the_simulation_equals_the_prediction(case in any_case()) {
        let (cost, plan) = planned(&case);
        let iteration = simulate_iteration(&plan, &cost, &Conditions::default()).unwrap();
        let timelines: Vec<Timeline> = iteration.replicas.iter().map(|replica| replica.timeline.clone()).collect();
        prop_assert_eq!(timelines, predicted_timeline(&plan, &cost).unwrap());
        prop_assert!(iteration.end.is_close(plan.iteration_ms));
        prop_assert_eq!(iteration.gpu_time.slower_rank, Millis::ZERO);
        prop_assert!(adds_up(&plan, &iteration));
    }

    #[test]
    fn a_plan_for_another_cluster_is_refused(case in any_case()) {
        let (cost, plan) = planned(&case);
        let larger = Cluster::new(2 * case.cluster.gpus_per_node() * case.cluster.gpus(), case.cluster.gpus_per_node());
        let other = CostModel::new(cost.profile().clone(), larger.unwrap());
        let refused = simulate_iteration(&plan, &other, &Conditions::default()).unwrap_err();
        prop_assert_eq!(refused.code(), "plan_mismatch");
        prop_assert_eq!(rank_memory(&plan, &other).unwrap_err(), refused);
    }

    /// The promises of the caps for every stage, at each moment of the run, and the remaining memory.
    #[test]
    fn memory_stays_within_the_limit_at_every_moment(case in any_case(), rate in 0.01..10.0_f64) {
        let (cost, plan) = planned(&case);
        let conditions = Conditions { network: Some(network(rate, 0.1)), ..Conditions::default() };
        let iteration = simulate_iteration(&plan, &cost, &conditions).unwrap();
        let memory = Tokens(cost.profile().hardware.memory_bytes).as_f64();
        for (run, replica) in iteration.replicas.iter().zip(&plan.replicas) {
            let window = cost.scheme(replica.scheme).unwrap().in_flight_limit();
            for (j, stage) in run.stages.iter().enumerate() {
                let at_once = replica.micro_batches.len().min(run.stages.len() - j);
                let windows = at_once.div_ceil(window.micro_batches) as u64;
                prop_assert!(stage.saved.iter().all(|saved| saved.tokens <= stage.peak));
                prop_assert!(stage.peak <= Tokens(windows * window.tokens.0));
                prop_assert!(stage.memory.total() <= memory * (1.0 + 1e-12));
                prop_assert_eq!(stage.saved.last().map_or(Tokens(0), |saved| saved.tokens), Tokens(0));
                prop_assert_eq!(stage.saved.len(), 2 * replica.micro_batches.len());
            }
            if case.memory == MemoryRule::PerMicroBatch && run.stages.len() == 1 {
                let most = replica.micro_batches.iter().map(|ids| ids.iter().map(|&id| plan.batch.tokens()[id]).sum());
                prop_assert_eq!(run.stages[0].peak, most.max().unwrap_or_default());
            }
        }
    }

    #[test]
    fn a_slow_rank_slows_its_stage_and_nothing_gets_faster(
        case in any_case(), rank in any::<prop::sample::Index>(), factor in 1.0..3.0_f64,
    ) {
        let (cost, plan) = planned(&case);
        let rank = u32::try_from(rank.index(case.cluster.gpus() as usize)).unwrap();
        let slowdowns = Slowdowns::new(&case.cluster, &[(rank, factor)]).unwrap();
        let before = simulate_iteration(&plan, &cost, &Conditions::default()).unwrap();
        let after = simulate_iteration(&plan, &cost, &Conditions { slowdowns, ..Conditions::default() }).unwrap();
        prop_assert!(adds_up(&plan, &after));
        prop_assert!(before.end.0 <= after.end.0 * (1.0 + 1e-12) && after.end.0 <= before.end.0 * factor * (1.0 + 1e-12));
        for ((before, after), replica) in before.replicas.iter().zip(&after.replicas).zip(&plan.replicas) {
            let layer_group = replica.ranks.len() / before.stages.len();
            for (j, (before, after)) in before.stages.iter().zip(&after.stages).enumerate() {
                let slow = replica.ranks[j * layer_group..(j + 1) * layer_group].contains(&rank);
                let expected = before.busy * if slow { factor } else { 1.0 };
                prop_assert!(after.busy.is_close(expected));
            }
        }
        let slow_share = after.gpu_time.compute.0 + after.gpu_time.slower_rank.0;
        prop_assert!(slow_share >= before.gpu_time.compute.0 * (1.0 - 1e-9));
    }

    #[test]
    fn slower_links_never_end_earlier(case in any_case(), rate in 0.01..1.0_f64) {
        let (cost, plan) = planned(&case);
        let end = |network| {
            let conditions = Conditions { network, ..Conditions::default() };
            let iteration = simulate_iteration(&plan, &cost, &conditions).unwrap();
            assert!(adds_up(&plan, &iteration));
            iteration.end
        };
        let (free, fast, slow) = (end(None), end(Some(network(rate, 0.0))), end(Some(network(rate / 2.0, 0.1))));
        prop_assert!(free <= fast && fast <= slow);
        let is_flat = plan.replicas.iter().all(|replica| replica.scheme.stages() == 1);
        prop_assert!(!is_flat || free == slow);
    }

    /// The step has the planner's times, to a rounding; a replica with work starts before it ends.
    #[test]
    fn without_conditions_the_step_equals_the_plans(case in any_case(), table in table(), is_search in any::<bool>()) {
        let planner = if is_search { case.searching() } else { case.planner() };
        let planner = planner.with_link(slow_link(table.clone())).unwrap();
        let plan = planner.plan(&case.batch()).unwrap();
        let conditions = Conditions { link: Some(slow_link(table)), ..Conditions::default() };
        let iteration = simulate_iteration(&plan, planner.cost(), &conditions).unwrap();
        let (planned, step) = (plan.transfers.unwrap(), iteration.step.clone().unwrap());
        prop_assert!(iteration.end.is_close(plan.iteration_ms));
        prop_assert!(step.end.is_close(planned.step_ms), "{:?} {:?}", step.end, planned);
        prop_assert!((step.transfer.0 - planned.transfer_ms.0).abs() <= 1e-9 * planned.step_ms.0);
        prop_assert!(step.alone.is_close(planned.alone_ms));
        prop_assert!(adds_up(&plan, &iteration));
        let transfer_spans: f64 = step.parameters.iter().chain(&step.gradients).map(|transfer_span| transfer_span.end.0 - transfer_span.start.0).sum();
        prop_assert!((transfer_spans - step.alone.0).abs() <= 1e-9 * step.alone.0);
    }

    /// Slow ranks, message times and slower links than planned with: they add at most the time of all transfers, make
    /// nothing faster, and leave the computation unchanged.
    #[test]
    fn a_step_is_simulated_under_the_conditions(
        case in any_case(), table in table(), factor in 1.0..3.0_f64, slower in 1.0..20.0_f64, rate in 0.01..1.0_f64,
    ) {
        let planner = case.planner().with_link(slow_link(table.clone())).unwrap();
        let plan = planner.plan(&case.batch()).unwrap();
        let planned = plan.transfers.unwrap();
        let all: Vec<(u32, f64)> = (0..case.cluster.gpus()).map(|rank| (rank, factor)).collect();
        let slowdowns = Slowdowns::new(&case.cluster, &all).unwrap();
        let run = |conditions| simulate_iteration(&plan, planner.cost(), &conditions).unwrap();
        let link = |table: &ParameterTable, slower: f64| {
            let LinkRates { gigabytes_per_s, gpu_gigabytes_per_s, message_us } = SLOW.rates;
            let rates = LinkRates {
                gigabytes_per_s: gigabytes_per_s / slower,
                gpu_gigabytes_per_s: gpu_gigabytes_per_s / slower,
                message_us: message_us * slower,
            };
            Some(Link::new(table.clone(), Traffic { rates, ..SLOW }).unwrap())
        };
        let slow_link = run(Conditions { link: link(&table, slower), ..Conditions::default() });
        let slow_ranks = run(Conditions { link: link(&table, 1.0), slowdowns: slowdowns.clone(), network: None });
        // With all ranks and all links equally slow, every time has the same factor.
        let slow_clock = run(Conditions { link: link(&table, factor), slowdowns: slowdowns.clone(), network: None });
        prop_assert!(slow_clock.step_end().is_close(planned.step_ms * factor), "{slow_clock:?} {planned:?}");
        let network = Some(network(rate, 0.1));
        let all_of_it = run(Conditions { link: link(&table, slower), slowdowns, network });
        for one in [&slow_link, &slow_ranks, &all_of_it] {
            prop_assert!(one.step_end().0 >= planned.step_ms.0 * (1.0 - 1e-12));
            prop_assert!(one.step_end().0 <= all_of_it.step_end().0 * (1.0 + 1e-12));
            let step = one.step.as_ref().unwrap();
            prop_assert!(step.end.0 <= (one.end.0 + step.alone.0) * (1.0 + 1e-9), "{one:?}");
            prop_assert!(adds_up(&plan, one));
            for (delayed, replica) in step.timelines.iter().zip(&one.replicas) {
                prop_assert_eq!(delayed.spans.len(), replica.timeline.spans.len());
                let at_once = delayed.spans.iter().zip(&replica.timeline.spans);
                prop_assert!(at_once.clone().all(|(late, soon)| late.end >= soon.end && late.compute == soon.compute));
            }
        }
        prop_assert!(slow_link.step.unwrap().alone.is_close(planned.alone_ms * slower));
    }
}
