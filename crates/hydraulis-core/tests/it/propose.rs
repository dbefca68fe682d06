//! Proposed lists: their promises for every batch, and their cost on other batches.

use std::cell::Cell;
use std::num::NonZeroUsize;

use hydraulis_core::batch::Batch;
use hydraulis_core::cost::preset;
use hydraulis_core::propose::{Progress, Proposal, Request, propose};
use hydraulis_core::search::Planner;
use hydraulis_core::spec::{Cluster, LinkRates, Strategy};
use hydraulis_core::timing::Link;
use hydraulis_core::{Error, Tokens};
use proptest::prelude::*;

use crate::cost::presets::batch_of_tokens;
use crate::support::arbitrary::{any_case, cases};

/// A hundredth of the usual rate between nodes.
const SLOW_RATES: LinkRates = LinkRates { gigabytes_per_s: 2.0, gpu_gigabytes_per_s: 200.0, message_us: 10.0 };

fn request(batches: &[Batch], count: usize, context: Option<Tokens>) -> Request<'_> {
    Request { batches, count: NonZeroUsize::new(count).unwrap(), context }
}

fn proposed(planner: &Planner, batches: &[Batch], count: usize, context: Option<Tokens>) -> Proposal {
    propose(planner, &request(batches, count, context), &|| Ok(()), &mut |_| Ok(())).unwrap()
}

fn list(proposal: &Proposal) -> Vec<Strategy> {
    proposal.strategies.iter().map(|one| one.strategy.clone()).collect()
}

fn llama_32b() -> Planner {
    Planner::search(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap()).unwrap()
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn every_batch_is_served_by_a_strategy_of_the_list(case in any_case(), count in 1..=4_usize) {
        let search = case.searching();
        let parts = case.lengths.chunks(case.lengths.len().div_ceil(3));
        let batches: Vec<Batch> = parts.map(|lengths| Batch::new(lengths, None).unwrap()).collect();
        let proposal = proposed(&search, &batches, count, None);
        let strategies = list(&proposal);
        prop_assert!((1..=count).contains(&strategies.len()));
        let planner = case.planner_of(strategies.clone());
        prop_assert_eq!(planner.strategies(), &strategies);
        prop_assert_eq!(planner.longest_admitted(), proposal.longest_admitted);
        let mut served: Vec<usize> = proposal.strategies.iter().flat_map(|one| one.batches.clone()).collect();
        served.sort_unstable();
        prop_assert!(served.into_iter().eq(0..batches.len()));
        for one in &proposal.strategies {
            for &batch in &one.batches {
                let alone = case.planner_of(vec![one.strategy.clone()]).plan(&batches[batch]).unwrap();
                let best = planner.plan(&batches[batch]).unwrap();
                prop_assert!(alone.iteration_ms.0 <= best.iteration_ms.0 * (1.0 + 1e-9));
            }
        }
        let shares: f64 = proposal.strategies.iter().map(|one| one.share).sum();
        prop_assert!((shares - 1.0).abs() < 1e-9);
        let expected: Vec<f64> = proposal.strategies.iter().map(|one| one.expected_ms.0).collect();
        prop_assert!(expected.windows(2).all(|pair| pair[1] < pair[0]), "{expected:?}");
        prop_assert_eq!(proposed(&search, &batches, count, None), proposal);
    }
}

/// Learnt from 50 batches of 200,000 tokens, eight strategies cost 0.3 % at most on 50 others; the few batches here
/// show less.
#[test]
fn a_list_serves_other_batches_too() {
    let search = llama_32b();
    let batches: Vec<Batch> = (0..24).map(|seed| batch_of_tokens(seed, 200_000)).collect();
    let (learnt, tried) = batches.split_at(12);
    let total = |planner: &Planner| tried.iter().map(|batch| planner.plan(batch).unwrap().iteration_ms.0).sum::<f64>();
    let over_search = |count| {
        let proposal = proposed(&search, learnt, count, Some(Tokens(32_768)));
        let planner =
            Planner::new(search.cost().profile().clone(), search.cost().cluster().clone(), Some(list(&proposal)))
                .unwrap();
        total(&planner) / total(&search) - 1.0
    };
    let (one, eight) = (over_search(1), over_search(8));
    assert!(eight < 0.02, "{eight}");
    assert!(one > 0.04 && one > 3.0 * eight, "{one}, {eight}");
}

/// Both times in a list's cost include transfers; with this slow link a step takes several times its iteration.
#[test]
fn with_a_link_a_list_and_a_search_are_compared_by_their_steps() {
    let link = Link::of_profile(&preset("llama-7b-a800").unwrap(), SLOW_RATES).unwrap();
    let search = Planner::search(preset("llama-7b-a800").unwrap(), Cluster::new(16, 8).unwrap()).unwrap();
    let search = search.with_link(link).unwrap();
    let batches = vec![Batch::new(&[900; 40], None).unwrap()];
    let plan = search.plan(&batches[0]).unwrap();
    assert!(plan.step_ms() > plan.iteration_ms * 2.0);
    let proposal = proposed(&search, &batches, 8, None);
    assert!(proposal.cost().abs() < 0.02, "{}", proposal.cost());
}

#[test]
fn a_stated_context_is_admitted() {
    let search = llama_32b();
    let batches = vec![Batch::new(&[900; 100], None).unwrap()];
    assert!(proposed(&search, &batches, 1, None).longest_admitted < Tokens(20_000));
    for count in [1, 2] {
        let proposal = proposed(&search, &batches, count, Some(Tokens(40_000)));
        assert!(proposal.longest_admitted >= Tokens(40_000));
        assert_eq!(proposal.strategies.len(), count);
    }
}

#[test]
fn impossible_requests_are_named() {
    let search = llama_32b();
    let batches = vec![Batch::new(&[900], None).unwrap(), Batch::new(&[900, 50_000], None).unwrap()];
    let refusal =
        |batches, context| propose(&search, &request(batches, 1, context), &|| Ok(()), &mut |_| Ok(())).unwrap_err();
    assert_eq!(refusal(&[], None).code(), "batch_empty");
    assert_eq!(refusal(&batches[..1], Some(Tokens(50_000))).code(), "sequence_too_long");
    assert_eq!(refusal(&batches, None).code(), "sequence_too_long");
    let error = refusal(&batches, None);
    assert!(error.to_string().starts_with("batch 1: sequence 1 has 50,000 tokens"), "{error}");
}

#[test]
fn the_caller_receives_each_step_and_can_stop() {
    let batches = vec![Batch::new(&[900, 20_000], None).unwrap(), Batch::new(&[300], None).unwrap()];
    let request = request(&batches, 2, None);
    let mut heard = Vec::new();
    let mut hear = |progress| {
        heard.push(progress);
        Ok(())
    };
    propose(&llama_32b(), &request, &|| Ok(()), &mut hear).unwrap();
    // Two given batches, and three drawn for each.
    let searched: Vec<Progress> = (0..=8).map(|batches| Progress::Searched { batches, of: 8 }).collect();
    assert_eq!(heard[..9], searched);
    assert_eq!(heard[9], Progress::Chosen(0));
    let mut calls = 0;
    let mut stop = |_| {
        calls += 1;
        if calls == 3 { Err(Error::Stopped) } else { Ok(()) }
    };
    assert_eq!(propose(&llama_32b(), &request, &|| Ok(()), &mut stop).unwrap_err(), Error::Stopped);
    assert_eq!(calls, 3);
}

/// A plan takes seconds if the search is large: a cancellation does not wait for its end.
#[test]
fn the_caller_can_stop_within_a_plan() {
    let batches = vec![batch_of_tokens(1, 200_000)];
    let calls = Cell::new(0);
    let cancellation = || {
        calls.set(calls.get() + 1);
        // The draw of three more batches calls it once each.
        if calls.get() == 6 { Err(Error::Stopped) } else { Ok(()) }
    };
    let mut heard = Vec::new();
    let mut hear = |progress| {
        heard.push(progress);
        Ok(())
    };
    assert_eq!(
        propose(&llama_32b(), &request(&batches, 2, None), &cancellation, &mut hear).unwrap_err().code(),
        "stopped"
    );
    assert_eq!(heard, [Progress::Searched { batches: 0, of: 4 }]);
    assert_eq!(calls.get(), 6);
}
