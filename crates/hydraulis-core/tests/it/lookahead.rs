//! Batches that are planned together: the promises of a lookahead, and its gain.

use std::cell::Cell;

use hydraulis_core::batch::Batch;
use hydraulis_core::cost::preset;
use hydraulis_core::layout::{Parameter, ParameterTable};
use hydraulis_core::lookahead::{Lookahead, LookaheadPlan, Member, Progress, check_lookahead, plan_lookahead};
use hydraulis_core::search::Planner;
use hydraulis_core::spec::{self, Cluster, LayerSplit, LinkRates, MemoryRule, SearchBudget};
use hydraulis_core::timing::{Link, Traffic};
use hydraulis_core::{Error, Millis, Result};
use proptest::option;
use proptest::prelude::*;

use crate::cost::presets::batch_of_tokens;
use crate::search::linked::{SLOW, slow_link};
use crate::support::arbitrary::{Case, any_case, cases, small_case};
use crate::support::world::table;

/// Plans within this relative distance of each other count as equal.
const TIE: f64 = 1e-3;

fn planned(planner: &Planner, lookahead: &Lookahead) -> Result<LookaheadPlan> {
    plan_lookahead(planner, lookahead, &|| Ok(()), &mut |_| Ok(()))
}

/// The sequences of a case in at most `most` batches.
fn batches(case: &Case, most: usize) -> Vec<Batch> {
    let parts = case.lengths.chunks(case.lengths.len().div_ceil(most));
    parts.map(|lengths| Batch::new(lengths, None).unwrap()).collect()
}

/// The planner unchanged, or with links so slow that the transfers of a small model matter next to its iterations.
fn linked(planner: Planner, table: Option<ParameterTable>) -> Planner {
    match table {
        Some(table) => planner.with_link(slow_link(table)).unwrap(),
        None => planner,
    }
}

fn llama_32b() -> Planner {
    Planner::search(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap()).unwrap()
}

fn codes(plan: &LookaheadPlan, lookahead: &Lookahead, planner: &Planner) -> Vec<&'static str> {
    check_lookahead(plan, lookahead, planner.cost(), planner.link()).iter().map(|broken| broken.code).collect()
}

/// Batches of short sequences and one of 32,768 tokens each.
fn with_long_ones(number: usize) -> Vec<Batch> {
    let batch = |seed| {
        let short = batch_of_tokens(seed, 150_000);
        let short = short.tokens().iter().map(|tokens| i64::try_from(tokens.0).unwrap()).filter(|&one| one < 10_000);
        Batch::new(&short.chain([32_768]).collect::<Vec<_>>(), None).unwrap()
    };
    (0..number as u64).map(batch).collect()
}

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn every_lookahead_keeps_its_promises(
        case in any_case(),
        table in option::of(table()),
        number in 1..=5_usize,
        max_delay in 0..=3_usize,
        (switch, is_search, has_before) in (0.0..100.0, any::<bool>(), any::<bool>()),
    ) {
        let planner = linked(if is_search { case.searching() } else { case.planner() }, table);
        let batches = batches(&case, number);
        let lookahead = Lookahead {
            batches: &batches,
            switch: Millis(switch),
            previous: has_before.then_some(&case.strategies[0]),
            max_delay,
        };
        let plan = planned(&planner, &lookahead).unwrap();
        let violations = check_lookahead(&plan, &lookahead, planner.cost(), planner.link());
        prop_assert!(violations.is_empty(), "{violations:?}");
        prop_assert!(plan.lower_bound_ms() <= plan.iteration_ms() + plan.transfer_ms());
        prop_assert!(max_delay > 0 || plan.moved() == 0);
        prop_assert_eq!(planned(&planner, &lookahead).unwrap(), plan);
    }

    #[test]
    fn a_lookahead_of_one_batch_without_costs_is_a_plan(case in any_case(), max_delay in 0..=2_usize, is_search in any::<bool>()) {
        let planner = if is_search { case.searching() } else { case.planner() };
        let batches = [case.batch()];
        let lookahead = Lookahead { max_delay, ..Lookahead::new(&batches) };
        let plan = planned(&planner, &lookahead).unwrap();
        prop_assert_eq!(&plan.steps[0].plan, &planner.plan(&batches[0]).unwrap());
        let members: Vec<Member> = (0..batches[0].len()).map(|sequence| Member { batch: 0, sequence }).collect();
        prop_assert_eq!(&plan.steps[0].members, &members);
        prop_assert_eq!(plan.step_ms(), plan.iteration_ms());
    }

    #[test]
    fn no_sequence_of_strategies_is_cheaper(
        case in small_case(),
        table in option::of(table()),
        number in 1..=3_usize,
        share in prop_oneof![Just(0.0), 0.0..2.0],
        has_before in any::<bool>(),
    ) {
        let (planner, batches) = (linked(case.planner(), table), batches(&case, number));
        let alone: Vec<f64> = batches.iter().map(|batch| planner.plan(batch).unwrap().iteration_ms.0).collect();
        let switch = Millis(share * alone[0]);
        let previous = has_before.then_some(&case.strategies[0]);
        let lookahead = Lookahead { switch, previous, ..Lookahead::new(&batches) };
        let found = planned(&planner, &lookahead).unwrap().step_ms().0;
        let best = cheapest(&case, planner.link(), &lookahead);
        prop_assert!(found <= best * (1.0 + TIE), "{found}, the best is {best}");
        prop_assert!(found >= best * (1.0 - 1e-9), "{found}, the best is {best}");
    }

    #[test]
    fn a_change_that_costs_too_much_is_not_made(case in any_case(), number in 2..=4_usize, is_search in any::<bool>()) {
        let planner = if is_search { case.searching() } else { case.planner() };
        let batches = batches(&case, number);
        let lookahead = Lookahead { switch: Millis(1e12), ..Lookahead::new(&batches) };
        let plan = planned(&planner, &lookahead).unwrap();
        let first = &plan.steps[0].plan.strategy;
        prop_assert!(plan.steps.iter().all(|step| step.plan.strategy == *first));
        prop_assert_eq!(plan.switch_ms(), Millis::ZERO);
    }
}

/// The least sum over all successions of the case's strategies, each planned alone.
fn cheapest(case: &Case, link: Option<&Link>, lookahead: &Lookahead) -> f64 {
    let list = &case.strategies;
    let alone = |one: &spec::Strategy| {
        let planner = case.planner_of(vec![one.clone()]);
        match link {
            Some(link) => planner.with_link(link.clone()).unwrap(),
            None => planner,
        }
    };
    let time = |one: &spec::Strategy, batch| alone(one).plan(batch).map_or(f64::INFINITY, |plan| plan.step_ms().0);
    let costs: Vec<Vec<f64>> =
        list.iter().map(|one| lookahead.batches.iter().map(|batch| time(one, batch)).collect()).collect();
    let steps = u32::try_from(lookahead.batches.len()).unwrap();
    let cheapest = |code: usize| (0..steps).map(move |step| code / list.len().pow(step) % list.len());
    let sum = |code: usize| {
        let own: f64 = cheapest(code).enumerate().map(|(batch, one)| costs[one][batch]).sum();
        let chain: Vec<&spec::Strategy> =
            lookahead.previous.into_iter().chain(cheapest(code).map(|one| &list[one])).collect();
        let changes = chain.windows(2).filter(|pair| pair[0] != pair[1]).count();
        own + lookahead.switch.0 * f64::from(u32::try_from(changes).unwrap())
    };
    (0..list.len().pow(steps)).map(sum).fold(f64::INFINITY, f64::min)
}

/// Strategies across nodes transfer at most half as much as those inside nodes; the first change is from an unlisted
/// strategy.
#[test]
fn no_sequence_of_strategies_is_cheaper_where_links_are_slow() {
    let (profile, cluster) = (preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap());
    let listed = Planner::new(profile.clone(), cluster.clone(), None).unwrap();
    let case = Case {
        profile,
        cluster,
        memory: MemoryRule::PerMicroBatch,
        strategies: listed.strategies().to_vec(),
        lengths: Vec::new(),
    };
    let batches: Vec<Batch> = [100_000, 30_000, 200_000].map(|tokens| batch_of_tokens(7, tokens)).to_vec();
    let layer = |layer_group| Parameter {
        name: format!("layer {layer_group}"),
        rows: 5_376,
        row_elements: 100_000,
        units: 5_376,
        layer_groups: vec![layer_group],
        trained: true,
    };
    let table = ParameterTable::new((1..=60).map(layer).collect(), LayerSplit::even(60)).unwrap();
    let previous: spec::Strategy = "2x<tp16>".parse().unwrap();
    let mut taken = Vec::new();
    for gigabytes_per_s in [5.0, 50.0, 500.0] {
        let rates = LinkRates { gigabytes_per_s, gpu_gigabytes_per_s: 200.0, message_us: 10.0 };
        let traffic = Traffic { rates, ..SLOW };
        let planner = listed.clone().with_link(Link::new(table.clone(), traffic).unwrap()).unwrap();
        for (switch, previous) in [(0.0, None), (150.0, Some(&previous))] {
            let lookahead = Lookahead { switch: Millis(switch), previous, ..Lookahead::new(&batches) };
            let plan = planned(&planner, &lookahead).unwrap();
            let (found, best) = (plan.step_ms().0, cheapest(&case, planner.link(), &lookahead));
            assert!((best * (1.0 - 1e-9)..=best * (1.0 + TIE)).contains(&found), "{found}, the best is {best}");
            taken.push(plan.steps.into_iter().map(|step| step.plan.strategy).collect::<Vec<_>>());
        }
    }
    taken.sort();
    taken.dedup();
    assert!(taken.len() >= 3, "{taken:?}");
}

#[test]
fn movable_long_sequences_are_gathered() {
    let (planner, batches) = (llama_32b(), with_long_ones(4));
    let of = |max_delay| planned(&planner, &Lookahead { max_delay, ..Lookahead::new(&batches) }).unwrap();
    let (none, one, three) = (of(0), of(1), of(3));
    assert_eq!(none.moved(), 0);
    assert!(one.moved() > 0);
    // A long sequence makes 4,982 ms in any batch; the batch without one takes 3,000.
    assert!(one.step_ms().0 < 0.9 * none.step_ms().0, "{:?}, {:?}", one.step_ms(), none.step_ms());
    assert!(three.step_ms() <= one.step_ms());
    let long = |plan: &LookaheadPlan| {
        let has = |step: &hydraulis_core::lookahead::Step| step.plan.batch.longest().1.0 == 32_768;
        plan.steps.iter().filter(|step| has(step)).count()
    };
    assert_eq!((long(&none), long(&three)), (4, 1));
}

#[test]
fn a_budget_of_no_exchange_moves_nothing() {
    let batches = with_long_ones(3);
    let lookahead = Lookahead { max_delay: 2, ..Lookahead::new(&batches) };
    let planner = llama_32b().with_budget(SearchBudget { exchanges: 0, ..SearchBudget::ONLINE });
    assert_eq!(planned(&planner, &lookahead).unwrap().moved(), 0);
}

/// The longest sequence of each batch has its only targets: a move of that sequence would leave its batch without a
/// loss.
#[test]
fn every_batch_keeps_a_target() {
    let batches: Vec<Batch> = with_long_ones(3)
        .iter()
        .map(|batch| {
            let lengths: Vec<i64> = batch.tokens().iter().map(|tokens| i64::try_from(tokens.0).unwrap()).collect();
            let targets: Vec<i64> = lengths.iter().map(|&length| i64::from(length == 32_768)).collect();
            Batch::new(&lengths, Some(&targets)).unwrap()
        })
        .collect();
    let lookahead = Lookahead { max_delay: 2, ..Lookahead::new(&batches) };
    let plan = planned(&llama_32b(), &lookahead).unwrap();
    assert_eq!(codes(&plan, &lookahead, &llama_32b()), [""; 0]);
    assert!(plan.steps.iter().all(|step| step.plan.batch.total_targets() > 0));
}

/// On these six batches the search changes its strategy five times.
#[test]
fn a_costly_change_is_made_less_often() {
    let planner = llama_32b();
    let batches: Vec<Batch> = (0..6).map(|seed| batch_of_tokens(seed, 200_000)).collect();
    let of = |switch| planned(&planner, &Lookahead { switch: Millis(switch), ..Lookahead::new(&batches) }).unwrap();
    let changes = |plan: &LookaheadPlan| {
        plan.steps.windows(2).filter(|pair| pair[0].plan.strategy != pair[1].plan.strategy).count()
    };
    let (free, dear) = (of(0.0), of(100.0));
    assert!(changes(&dear) < changes(&free), "{} and {}", changes(&dear), changes(&free));
    let free_then_paid = free.step_ms().0 + 100.0 * f64::from(u32::try_from(changes(&free)).unwrap());
    assert!(dear.step_ms().0 < free_then_paid);
    // The preceding strategy stays if no other gains enough.
    let previous: spec::Strategy = "1x<tp16>+12x<tp4>".parse().unwrap();
    let lookahead = Lookahead { switch: Millis(1e9), previous: Some(&previous), ..Lookahead::new(&batches[..2]) };
    let kept = planned(&planner, &lookahead).unwrap();
    assert!(kept.steps.iter().all(|step| step.plan.strategy == previous));
}

#[test]
fn the_checker_reports_each_broken_promise() {
    let (planner, batches) = (llama_32b(), with_long_ones(3));
    let lookahead = Lookahead { switch: Millis(5.0), max_delay: 1, ..Lookahead::new(&batches) };
    let plan = planned(&planner, &lookahead).unwrap();
    assert_eq!(codes(&plan, &lookahead, &planner), [""; 0]);
    let tampered = |tamper: &dyn Fn(&mut LookaheadPlan)| {
        let mut plan = plan.clone();
        tamper(&mut plan);
        codes(&plan, &lookahead, &planner)
    };
    assert!(tampered(&|plan| drop(plan.steps.pop())).contains(&"lookahead_differs"));
    assert!(tampered(&|plan| plan.steps[1].members.truncate(1)).contains(&"sequence_missing"));
    assert!(tampered(&|plan| plan.steps[1].members[0] = plan.steps[1].members[1]).contains(&"sequence_repeated"));
    assert!(tampered(&|plan| plan.steps[1].members[0].sequence = 1_000_000).contains(&"sequence_unknown"));
    assert!(tampered(&|plan| plan.steps.swap(0, 2)).contains(&"sequence_delayed"));
    assert!(tampered(&|plan| plan.steps[1].members.truncate(50)).contains(&"tokens_differ"));
    assert!(tampered(&|plan| plan.steps[1].switch_ms = Millis(7.0)).contains(&"switch_time_wrong"));
    assert!(tampered(&|plan| plan.steps[1].plan.iteration_ms = Millis(7.0)).contains(&"iteration_time_wrong"));
}

#[test]
fn batches_that_cannot_be_planned_are_named() {
    let planner = llama_32b();
    let batches = [Batch::new(&[900], None).unwrap(), Batch::new(&[900, 50_000], None).unwrap()];
    let refusal = |lookahead: Lookahead| planned(&planner, &lookahead).unwrap_err();
    assert_eq!(refusal(Lookahead::new(&[])).code(), "batch_empty");
    for switch in [-1.0, f64::NAN, f64::INFINITY] {
        assert_eq!(
            refusal(Lookahead { switch: Millis(switch), ..Lookahead::new(&batches[..1]) }).code(),
            "argument_invalid"
        );
    }
    let error = refusal(Lookahead::new(&batches));
    assert!(error.to_string().starts_with("batch 1: sequence 1 has 50,000 tokens"), "{error}");
    assert_eq!(error.code(), "sequence_too_long");
}

#[test]
fn the_caller_receives_each_step_and_can_stop() {
    let batches = with_long_ones(2);
    let lookahead = Lookahead { max_delay: 1, ..Lookahead::new(&batches) };
    let mut heard = Vec::new();
    let mut hear = |progress| {
        heard.push(progress);
        Ok(())
    };
    plan_lookahead(&llama_32b(), &lookahead, &|| Ok(()), &mut hear).unwrap();
    let planned: Vec<Progress> = (0..2).map(|batches| Progress::Planned { batches, of: 2 }).collect();
    assert_eq!(heard[..2], planned);
    assert_eq!(heard[2], Progress::Exchanged { exchanges: 0, of: 2 * SearchBudget::ONLINE.exchanges });
    let mut stop = |progress| if progress == heard[2] { Err(Error::Stopped) } else { Ok(()) };
    assert_eq!(plan_lookahead(&llama_32b(), &lookahead, &|| Ok(()), &mut stop).unwrap_err(), Error::Stopped);
}

/// A lookahead takes as long as several plans: a cancellation does not wait for the end of one.
#[test]
fn the_caller_can_stop_within_a_plan() {
    let batches = with_long_ones(2);
    let lookahead = Lookahead { max_delay: 1, ..Lookahead::new(&batches) };
    let calls = Cell::new(0);
    let cancellation = || {
        calls.set(calls.get() + 1);
        Err(Error::Stopped)
    };
    let mut heard = Vec::new();
    let mut hear = |progress| {
        heard.push(progress);
        Ok(())
    };
    assert_eq!(plan_lookahead(&llama_32b(), &lookahead, &cancellation, &mut hear).unwrap_err().code(), "stopped");
    assert_eq!((heard, calls.get()), (vec![Progress::Planned { batches: 0, of: 2 }], 1));
}

/// The bounds of all batches under all strategies take longer than most plans.
#[test]
fn the_caller_can_stop_while_changes_of_strategy_are_weighed() {
    let batches: Vec<Batch> = (0..4).map(|seed| batch_of_tokens(seed, 100_000)).collect();
    let calls = |switch| {
        let number = Cell::new(0);
        let cancellation = || {
            number.set(number.get() + 1);
            Ok(())
        };
        let lookahead = Lookahead { batches: &batches, max_delay: 0, switch: Millis(switch), previous: None };
        plan_lookahead(&llama_32b(), &lookahead, &cancellation, &mut |_| Ok(())).unwrap();
        number.get()
    };
    assert!(calls(1e-6) >= calls(0.0) + batches.len());
}
