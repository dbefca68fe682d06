//! Balances under every option: the promises, checked from the sequences alone, and exact optima of small cases.

use std::collections::BTreeMap;

use hydraulis_core::batch::Batch;
use hydraulis_core::batching::balance::{
    Balance, BalanceOptions, Balancer, Barrier, MicroBatch, SequenceCost, SequenceValues,
};
use hydraulis_core::{Error, Millis};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use crate::support::arbitrary::cases;

const CAP: i64 = 100;
const EXTRA_CAP: i64 = 50;

/// A batch with its sequences' values, and the options of its balance.
#[derive(Clone, Debug)]
struct Case {
    lengths: Vec<i64>,
    replicas: usize,
    barrier: Barrier,
    coefficients: (f64, f64),
    work: Option<Vec<f64>>,
    extra: Option<Vec<i64>>,
    groups: Option<Vec<i64>>,
    options: BalanceOptions,
}

impl Case {
    fn balance(&self) -> Result<Balance, Error> {
        let cost = match self.coefficients {
            (0.0, 0.0) => SequenceCost::NONE,
            (quadratic, linear) => SequenceCost::new(quadratic, linear)?,
        };
        let values = SequenceValues {
            work_ms: self.work.as_deref(),
            extra_tokens: self.extra.as_deref(),
            groups: self.groups.as_deref(),
        };
        let replicas = i64::try_from(self.replicas).unwrap();
        let balancer = Balancer::new(replicas, CAP, cost, self.barrier, &self.options)?;
        balancer.balance_values(&Batch::new(&self.lengths, None)?, &values, &|| Ok(()))
    }

    #[expect(clippy::cast_precision_loss, reason = "lengths are at most the cap")]
    fn ms(&self, id: usize) -> f64 {
        let tokens = self.lengths[id] as f64;
        let work = self.work.as_ref().map_or(0.0, |work| work[id]);
        self.coefficients.0 * tokens * tokens + self.coefficients.1 * tokens + work
    }

    fn speed(&self, replica: usize) -> f64 {
        self.options.speeds.as_ref().map_or(1.0, |speeds| speeds[replica])
    }

    /// The time of a micro-batch on a replica.
    fn time(&self, ids: &[usize], replica: usize) -> f64 {
        (self.options.fixed_ms + ids.iter().map(|&id| self.ms(id)).sum::<f64>()) / self.speed(replica)
    }

    fn fits(&self, ids: &[usize]) -> bool {
        let extra = |id: &usize| self.extra.as_ref().map_or(0, |extra| extra[*id]);
        ids.iter().map(|&id| self.lengths[id]).sum::<i64>() <= CAP && ids.iter().map(extra).sum::<i64>() <= EXTRA_CAP
    }

    /// The parts that stay together.
    fn units(&self) -> Vec<Vec<usize>> {
        let Some(groups) = &self.groups else { return (0..self.lengths.len()).map(|id| vec![id]).collect() };
        let mut units: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
        groups.iter().enumerate().for_each(|(id, &group)| units.entry(group).or_default().push(id));
        units.into_values().collect()
    }

    /// The least permitted number of micro-batches of a replica that has `filled` filled ones; `None` where there is
    /// none.
    fn permitted(&self, filled: usize) -> Option<usize> {
        let options = &self.options;
        (filled..=filled + 12).find(|&number| {
            let number = i64::try_from(number).unwrap();
            options.micro_batches.is_none_or(|exact| number == exact)
                && number >= options.least_micro_batches
                && number % options.multiple_of == 0
        })
    }

    fn has_equal_sequences(&self, numbers: &[usize]) -> bool {
        !self.options.equal_sequences || numbers.iter().max().unwrap() - numbers.iter().min().unwrap() <= self.unit()
    }

    /// The number of sequences that stay together.
    fn unit(&self) -> usize {
        self.units().iter().map(Vec::len).max().unwrap()
    }

    /// The time of the step; the micro-batches of each replica come in their order.
    fn step(&self, replicas: &[Vec<Vec<usize>>]) -> f64 {
        let times = |(at, own): (usize, &Vec<Vec<usize>>)| own.iter().map(|ids| self.time(ids, at)).collect::<Vec<_>>();
        let times: Vec<Vec<f64>> = replicas.iter().enumerate().map(times).collect();
        match self.barrier {
            Barrier::Step => times.iter().map(|own| own.iter().sum()).fold(0.0, f64::max),
            Barrier::MicroBatch => {
                (0..times[0].len()).map(|slot| times.iter().map(|own| own[slot]).fold(0.0, f64::max)).sum()
            }
        }
    }
}

/// The broken promises of a balance.
fn broken(case: &Case, balance: &Balance) -> Vec<String> {
    let mut broken = Vec::new();
    let mut expect = |holds: bool, what: &str| {
        if !holds {
            broken.push(what.to_owned());
        }
    };
    let ids = |own: &Vec<MicroBatch>| own.iter().map(|one| one.sequences.clone()).collect::<Vec<_>>();
    let replicas: Vec<Vec<Vec<usize>>> = balance.replicas.iter().map(ids).collect();
    let mut all: Vec<usize> = replicas.iter().flatten().flatten().copied().collect();
    all.sort_unstable();
    expect(all.into_iter().eq(0..case.lengths.len()), "every sequence once");
    expect(replicas.len() == case.replicas, "the replicas");
    let options = &case.options;
    for own in &replicas {
        let number = i64::try_from(own.len()).unwrap();
        expect(options.micro_batches.is_none_or(|exact| exact == number), "the exact number");
        expect(number >= options.least_micro_batches, "the least number");
        expect(number % options.multiple_of == 0, "the multiple");
        expect(case.barrier == Barrier::Step || own.len() == replicas[0].len(), "equal numbers in slots");
        expect(options.allow_empty || !own.is_empty(), "a replica without micro-batches");
        for ids in own {
            expect(case.fits(ids), "the caps");
            expect(options.allow_empty || !ids.is_empty(), "an empty micro-batch");
        }
    }
    for unit in case.units() {
        let places = replicas.iter().flatten().filter(|ids| ids.iter().any(|id| unit.contains(id)));
        expect(places.count() == 1, "a group in one micro-batch");
    }
    let numbers: Vec<usize> = replicas.iter().map(|own| own.iter().map(Vec::len).sum()).collect();
    expect(case.has_equal_sequences(&numbers), "equal numbers of sequences");
    let close = |one: f64, other: f64| (one - other).abs() <= 1e-9 * one.abs().max(1.0);
    expect(close(balance.iteration_ms.0, case.step(&replicas)), "the time of the step");
    for (at, own) in balance.replicas.iter().enumerate() {
        expect(own.iter().all(|one| close(one.ms.0, case.time(&one.sequences, at))), "the time of a micro-batch");
    }
    expect(balance.lower_bound_ms <= balance.iteration_ms, "the bound");
    expect(close(balance.loss_weights.iter().sum(), f64::from(u32::try_from(case.replicas).unwrap())), "loss weights");
    broken
}

/// Visits every assignment of the units to micro-batches of replicas.
fn assignments(
    case: &Case,
    units: &[Vec<usize>],
    open: &mut Vec<Vec<Vec<usize>>>,
    visit: &mut impl FnMut(&[Vec<Vec<usize>>]),
) {
    let Some((unit, others)) = units.split_first() else { return visit(open) };
    for replica in 0..open.len() {
        for place in 0..=open[replica].len() {
            if place == open[replica].len() {
                open[replica].push(Vec::new());
            }
            let before = open[replica][place].len();
            open[replica][place].extend(unit);
            if case.fits(&open[replica][place]) {
                assignments(case, others, open, visit);
            }
            open[replica][place].truncate(before);
            if before == 0 {
                open[replica].pop();
                break;
            }
        }
    }
}

/// The least time of a step over all permitted assignments; `None` where there is none.
fn optimum(case: &Case) -> Option<f64> {
    let mut best: Option<f64> = None;
    assignments(case, &case.units(), &mut vec![Vec::new(); case.replicas], &mut |assigned| {
        let numbers: Vec<usize> = assigned.iter().map(|own| own.iter().map(Vec::len).sum()).collect();
        if !case.has_equal_sequences(&numbers) {
            return;
        }
        let slots = assigned.iter().map(Vec::len).max().unwrap();
        let mut padded = assigned.to_vec();
        for (at, own) in padded.iter_mut().enumerate() {
            let filled = if case.barrier == Barrier::MicroBatch { slots } else { own.len() };
            let Some(number) = case.permitted(filled) else { return };
            if !case.options.allow_empty && (number != own.len() || own.is_empty()) {
                return;
            }
            own.resize(number, Vec::new());
            // In this order, the slots have the least sum of their longest micro-batches.
            own.sort_by(|one, other| case.time(other, at).total_cmp(&case.time(one, at)));
        }
        let time = case.step(&padded);
        best = Some(best.map_or(time, |best: f64| best.min(time)));
    });
    best
}

prop_compose! {
    fn any_options(replicas: usize)(
        exact in option::weighted(0.3, 1..=4_i64),
        least in select(vec![0_i64, 0, 0, 1, 2]),
        multiple in select(vec![1_i64, 1, 1, 2, 3]),
        equal_sequences in prop::bool::weighted(0.3),
        fixed_ms in select(vec![0.0, 0.0, 20.0, 500.0]),
        speeds in option::weighted(0.4, vec(select(vec![0.5, 1.0, 1.0, 3.0]), replicas)),
        allow_empty in prop::bool::weighted(0.3),
    ) -> BalanceOptions {
        let (least, multiple) = if exact.is_some() { (0, 1) } else { (least, multiple) };
        BalanceOptions {
            micro_batches: exact,
            least_micro_batches: least,
            multiple_of: multiple,
            equal_sequences,
            fixed_ms,
            speeds,
            cap_extra_tokens: None,
            allow_empty,
        }
    }
}

fn any_case(most_sequences: usize, most_replicas: usize) -> impl Strategy<Value = Case> {
    let sizes = (1..=most_sequences, 1..=most_replicas);
    sizes.prop_flat_map(|(n, replicas)| {
        let length = prop_oneof![3 => 1..=40_i64, 1 => 41..=CAP];
        let values = (
            vec(length, n),
            option::weighted(0.4, vec(select(vec![0.0, 1.0, 90.0, 1e3]), n)),
            option::weighted(0.3, vec(0..=EXTRA_CAP, n)),
            option::weighted(0.3, 1..=2_usize),
        );
        let barrier = select(vec![Barrier::Step, Barrier::MicroBatch]);
        let coefficients = select(vec![(0.0, 1.0), (1.0, 10.0), (0.0, 0.0)]);
        (values, any_options(replicas), barrier, coefficients).prop_map(
            move |(values, options, barrier, coefficients)| {
                let (lengths, work, extra, group) = values;
                let group = group.filter(|size| n % size == 0);
                let groups = group.map(|size| (0..n).map(|id| i64::try_from(id / size).unwrap()).collect());
                // A group fits into a micro-batch.
                let share = i64::try_from(group.unwrap_or(1)).unwrap();
                let lengths: Vec<i64> = lengths.into_iter().map(|length| (length / share).max(1)).collect();
                let extra = extra.map(|extra: Vec<i64>| extra.into_iter().map(|tokens| tokens / share).collect());
                let work = work.or_else(|| (coefficients == (0.0, 0.0)).then(|| vec![7.0; n]));
                let cap_extra_tokens = extra.is_some().then_some(EXTRA_CAP);
                let options = BalanceOptions { cap_extra_tokens, ..options };
                Case { lengths, replicas, barrier, coefficients, work, extra, groups, options }
            },
        )
    })
}

/// Whether the options let every batch with enough sequences have a plan.
fn is_free(case: &Case) -> bool {
    let options = &case.options;
    options.micro_batches.is_none() && options.allow_empty
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn every_option_keeps_its_promises(case in any_case(120, 9)) {
        match case.balance() {
            Ok(balance) => {
                prop_assert_eq!(broken(&case, &balance), Vec::<String>::new(), "{:?}", balance);
                prop_assert_eq!(case.balance().unwrap(), balance);
            }
            Err(error) => {
                prop_assert_eq!(error.code(), "batch_unplaceable", "{}", error);
                prop_assert!(!is_free(&case), "{error}");
            }
        }
    }

    #[test]
    fn the_bound_of_every_option_is_never_above_the_optimum(case in prop_oneof![any_case(5, 3), any_case(6, 2)]) {
        match (case.balance(), optimum(&case)) {
            (Ok(balance), Some(optimum)) => {
                prop_assert_eq!(broken(&case, &balance), Vec::<String>::new(), "{:?}", balance);
                prop_assert!(balance.lower_bound_ms.0 <= optimum, "{optimum} {balance:?}");
                prop_assert!(optimum <= balance.iteration_ms.0 * (1.0 + 1e-9), "{optimum} {balance:?}");
            }
            (Ok(balance), None) => prop_assert!(false, "no permitted assignment exists: {balance:?}"),
            (Err(error), optimum) => {
                prop_assert_eq!(error.code(), "batch_unplaceable", "{}", error);
                prop_assert!(optimum.is_none() || !is_free(&case), "{error} {optimum:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(256))]

    /// Two sequences on two replicas: the optimum is the better of both assignments.
    #[test]
    fn two_replicas_with_a_sequence_each_are_assigned_optimally(
        lengths in vec(1..=CAP, 2), speeds in vec(select(vec![0.25, 0.5, 1.0, 2.0]), 2),
    ) {
        let options = BalanceOptions { equal_sequences: true, speeds: Some(speeds), ..BalanceOptions::default() };
        let case = Case {
            lengths,
            replicas: 2,
            barrier: Barrier::MicroBatch,
            coefficients: (0.0, 1.0),
            work: None,
            extra: None,
            groups: None,
            options,
        };
        let balance = case.balance().unwrap();
        prop_assert_eq!(Some(balance.iteration_ms.0), optimum(&case), "{:?}", balance);
    }
}

#[test]
fn zero_time_is_no_error() {
    let case = Case {
        lengths: vec![5, 3],
        replicas: 2,
        barrier: Barrier::Step,
        coefficients: (0.0, 0.0),
        work: Some(vec![0.0, 0.0]),
        extra: None,
        groups: None,
        options: BalanceOptions::default(),
    };
    let balance = case.balance().unwrap();
    assert_eq!((balance.iteration_ms, balance.gap()), (Millis::ZERO, 0.0));
}
