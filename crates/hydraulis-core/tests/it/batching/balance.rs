//! Promises of every balance, and its quality: against exact optima of small cases and a direct implementation.

use std::cell::Cell;

use hydraulis_core::batch::Batch;
use hydraulis_core::batching::balance::{
    Balance, BalanceOptions, Balancer, Barrier, MicroBatch, SequenceCost, SequenceValues,
};
use hydraulis_core::{Error, Millis, Tokens};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::support::arbitrary::cases;

/// The input of a balance.
#[derive(Clone, Debug)]
struct Case {
    lengths: Vec<i64>,
    replicas: usize,
    cap: u64,
    coefficients: (f64, f64),
}

impl Case {
    fn cost(&self) -> SequenceCost {
        SequenceCost::new(self.coefficients.0, self.coefficients.1).unwrap()
    }

    /// The balance in which micro-batches may be empty.
    fn balance(&self, barrier: Barrier) -> Balance {
        self.with(barrier, true).unwrap()
    }

    fn with(&self, barrier: Barrier, allow_empty: bool) -> Result<Balance, Error> {
        self.under(barrier, &BalanceOptions { allow_empty, ..BalanceOptions::default() })
    }

    fn under(&self, barrier: Barrier, options: &BalanceOptions) -> Result<Balance, Error> {
        let replicas = i64::try_from(self.replicas).unwrap();
        let cap = i64::try_from(self.cap).unwrap();
        let balancer = Balancer::new(replicas, cap, self.cost(), barrier, options).unwrap();
        balancer.balance(&Batch::new(&self.lengths, None).unwrap())
    }

    fn ms(&self, ids: &[usize]) -> Millis {
        ids.iter().map(|&id| self.cost().sequence_ms(self.tokens(id))).sum()
    }

    fn tokens(&self, id: usize) -> Tokens {
        Tokens(u64::try_from(self.lengths[id]).unwrap())
    }
}

fn any_case(sizes: std::ops::RangeInclusive<usize>, most_replicas: usize) -> impl Strategy<Value = Case> {
    let coefficients = select(vec![(1.0, 24_576.0), (0.0, 1.0), (1.0, 0.0), (1e-6, 0.1)]);
    let length = prop_oneof![4 => (0.0..1.0_f64).prop_map(Length::Tail), 1 => select(Length::SPECIAL.to_vec())];
    (vec(length, sizes), 1..=most_replicas, select(vec![1_u64, 7, 100, 4_096]), coefficients).prop_map(
        |(lengths, replicas, cap, coefficients)| {
            let lengths = lengths.iter().map(|length| length.tokens(cap)).collect();
            Case { lengths, replicas, cap, coefficients }
        },
    )
}

/// A length, as a share of the cap.
#[derive(Clone, Copy, Debug)]
enum Length {
    /// A share that is uniform in its logarithm.
    Tail(f64),
    Full,
    Half,
    AboveHalf,
}

impl Length {
    const SPECIAL: [Length; 3] = [Length::Full, Length::Half, Length::AboveHalf];

    #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "caps are far below 2^53")]
    fn tokens(self, cap: u64) -> i64 {
        let cap = i64::try_from(cap).unwrap();
        let tokens = match self {
            Length::Tail(share) => (cap as f64).powf(share) as i64,
            Length::Full => cap,
            Length::Half => cap / 2,
            Length::AboveHalf => cap / 2 + 1,
        };
        tokens.clamp(1, cap)
    }
}

/// The time of a step, computed from the micro-batches alone.
fn iteration_ms(case: &Case, balance: &Balance, barrier: Barrier) -> Millis {
    let ms = |micro_batch: &MicroBatch| case.ms(&micro_batch.sequences);
    let total = |replica: &Vec<MicroBatch>| replica.iter().map(ms).sum();
    match barrier {
        Barrier::Step => balance.replicas.iter().map(total).max().unwrap(),
        Barrier::MicroBatch => {
            let slots = balance.replicas[0].len();
            (0..slots).map(|slot| balance.replicas.iter().map(|replica| ms(&replica[slot])).max().unwrap()).sum()
        }
    }
}

/// Visits every packing of sequences into micro-batches under the cap, as the times of the micro-batches.
fn packings(case: &Case, next: usize, open: &mut Vec<Vec<usize>>, visit: &mut impl FnMut(&[Vec<usize>])) {
    if next == case.lengths.len() {
        return visit(open);
    }
    for at in 0..open.len() {
        open[at].push(next);
        if open[at].iter().map(|&id| case.tokens(id)).sum::<Tokens>().0 <= case.cap {
            packings(case, next + 1, open, visit);
        }
        open[at].pop();
    }
    open.push(vec![next]);
    packings(case, next + 1, open, visit);
    open.pop();
}

/// The least sum of the slots' longest micro-batches: in order of time, each `replicas` of them share a slot.
fn optimum_by_slot(case: &Case) -> Millis {
    let mut best = Millis::INFINITY;
    packings(case, 0, &mut Vec::new(), &mut |open| {
        let mut times: Vec<Millis> = open.iter().map(|ids| case.ms(ids)).collect();
        times.sort();
        best = best.min(times.iter().rev().step_by(case.replicas).copied().sum());
    });
    best
}

/// The least maximum of the replicas' totals: a replica can run its sequences one at a time.
fn optimum_by_step(case: &Case) -> Millis {
    let mut best = Millis::INFINITY;
    let uncapped = Case { cap: u64::MAX, ..case.clone() };
    packings(&uncapped, 0, &mut Vec::new(), &mut |open| {
        if open.len() <= case.replicas {
            best = best.min(open.iter().map(|ids| case.ms(ids)).max().unwrap());
        }
    });
    best
}

/// Graham's rule, written directly: the ids of each replica, longest first.
fn longest_first(case: &Case) -> Vec<Vec<usize>> {
    let mut ids: Vec<usize> = (0..case.lengths.len()).collect();
    ids.sort_by_key(|&id| (std::cmp::Reverse(case.lengths[id]), id));
    let mut assigned = vec![Vec::new(); case.replicas];
    let mut totals = vec![Millis::ZERO; case.replicas];
    for id in ids {
        let quickest = (0..case.replicas).min_by_key(|&replica| totals[replica]).unwrap();
        totals[quickest] += case.ms(&[id]);
        assigned[quickest].push(id);
    }
    assigned
}

fn longest_total(case: &Case, assigned: &[Vec<usize>]) -> Millis {
    assigned.iter().map(|ids| case.ms(ids)).max().unwrap()
}

/// The number of micro-batches of best-fit decreasing, written directly.
fn packed(case: &Case, assigned: &[Vec<usize>]) -> usize {
    let of_one = |ids: &Vec<usize>| {
        let mut rooms: Vec<u64> = Vec::new();
        for &id in ids {
            let tokens = case.tokens(id).0;
            match rooms.iter_mut().filter(|room| **room >= tokens).min() {
                Some(room) => *room -= tokens,
                None => rooms.push(case.cap - tokens),
            }
        }
        rooms.len()
    };
    assigned.iter().map(of_one).sum()
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn every_balance_keeps_its_promises(case in any_case(1..=200, 20), step in any::<bool>()) {
        let barrier = if step { Barrier::Step } else { Barrier::MicroBatch };
        let balance = case.balance(barrier);
        let mut ids: Vec<usize> = balance.sequences().collect();
        ids.sort_unstable();
        prop_assert!(ids.into_iter().eq(0..case.lengths.len()));
        prop_assert_eq!(balance.replicas.len(), case.replicas);
        for micro_batch in balance.micro_batches() {
            let tokens: Tokens = micro_batch.sequences.iter().map(|&id| case.tokens(id)).sum();
            prop_assert!(tokens.0 <= case.cap);
            prop_assert_eq!(tokens, micro_batch.tokens);
            prop_assert!(micro_batch.ms.is_close(case.ms(&micro_batch.sequences)));
            prop_assert!(micro_batch.sequences.is_sorted_by_key(|&id| (std::cmp::Reverse(case.lengths[id]), id)));
        }
        if !step {
            prop_assert!(balance.replicas.iter().all(|replica| replica.len() == balance.replicas[0].len()));
        }
        prop_assert!(balance.iteration_ms.is_close(iteration_ms(&case, &balance, barrier)));
        prop_assert!(balance.iteration_ms >= balance.lower_bound_ms, "{balance:?}");
        prop_assert_eq!(case.balance(barrier), balance);
    }

    /// Among 300 batches of this kind, 20 had an empty micro-batch although every micro-batch could have a sequence.
    #[test]
    fn no_micro_batch_is_empty_unless_the_options_permit_it(case in any_case(1..=40, 20), step in any::<bool>()) {
        let barrier = if step { Barrier::Step } else { Barrier::MicroBatch };
        match case.with(barrier, false) {
            Ok(balance) => {
                let is_filled = |own: &Vec<MicroBatch>| {
                    !own.is_empty() && own.iter().all(|one| !one.sequences.is_empty())
                };
                prop_assert!(balance.replicas.iter().all(is_filled), "{balance:?}");
                prop_assert!(balance.iteration_ms.is_close(iteration_ms(&case, &balance, barrier)));
                prop_assert!(balance.iteration_ms >= balance.lower_bound_ms, "{balance:?}");
            }
            Err(error) => {
                prop_assert_eq!(error.code(), "batch_unplaceable");
                let count = case.balance(barrier).micro_batches().count().max(case.replicas);
                prop_assert!(case.lengths.len() < count, "{error}");
            }
        }
    }

    #[test]
    fn the_bound_is_never_above_the_optimum(case in any_case(1..=7, 3)) {
        let (by_slot, by_step) = (optimum_by_slot(&case), optimum_by_step(&case));
        let (slots, step) = (case.balance(Barrier::MicroBatch), case.balance(Barrier::Step));
        prop_assert!(slots.lower_bound_ms <= by_slot, "{:?} {by_slot:?}", slots.lower_bound_ms);
        prop_assert!(step.lower_bound_ms <= by_step, "{:?} {by_step:?}", step.lower_bound_ms);
        prop_assert!(by_slot <= slots.iteration_ms || by_slot.is_close(slots.iteration_ms));
        prop_assert!(by_step <= step.iteration_ms || by_step.is_close(step.iteration_ms));
    }

    /// The result is that of the direct rule, unless that rule needs more micro-batches than the tokens require; then
    /// the balance has fewer of them.
    #[test]
    fn with_one_barrier_per_step_totals_equal_those_of_the_plain_rule(case in any_case(1..=200, 20)) {
        let (balance, plain) = (case.balance(Barrier::Step), longest_first(&case));
        let number = balance.micro_batches().count();
        if balance.iteration_ms.is_close(longest_total(&case, &plain)) {
            prop_assert!(number <= packed(&case, &plain));
        } else {
            let tokens: u64 = (0..case.lengths.len()).map(|id| case.tokens(id).0).sum();
            prop_assert!(packed(&case, &plain) as u64 > tokens.div_ceil(case.cap), "the plain rule would do");
            prop_assert!(number < packed(&case, &plain));
            prop_assert!(balance.iteration_ms <= longest_total(&case, &plain) * 1.001);
        }
    }
}

/// Lengths with the tails of training data: `n` quantiles of a log-logistic law of median 1,500, shuffled.
#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "lengths are far below 2^53")]
fn long_tail(n: usize, longest: i64) -> Vec<i64> {
    let quantile = |at: usize| ((at * 7_919 % n) as f64 + 0.5) / n as f64;
    let odds = |at: usize| quantile(at) / (1.0 - quantile(at));
    (0..n).map(|at| ((1_500.0 * odds(at).powf(0.7)) as i64).clamp(1, longest)).collect()
}

#[test]
fn on_a_long_tail_both_barriers_are_near_their_bounds() {
    let cap = 32_768;
    let case = Case { lengths: long_tail(4_096, 32_768), replicas: 64, cap, coefficients: (1.0, 24_576.0) };
    let (slots, step) = (case.balance(Barrier::MicroBatch), case.balance(Barrier::Step));
    assert!(slots.gap() <= 0.01, "{}", slots.gap());
    assert!(step.gap() <= 0.001, "{}", step.gap());
    let tokens: i64 = case.lengths.iter().sum();
    let least = u64::try_from(tokens).unwrap().div_ceil(cap).div_ceil(64) * 64;
    assert_eq!(slots.micro_batches().count() as u64, least);
    assert!(step.micro_batches().count() as u64 <= least);
    // One balance for both barriers would lose time: equal totals leave slots unequal, and equal slots leave totals
    // unequal.
    let other = |balance: &Balance, barrier| iteration_ms(&case, balance, barrier).0;
    assert!(other(&slots, Barrier::Step) > step.iteration_ms.0 * 1.001);
}

#[test]
fn equal_numbers_of_sequences_cost_no_time_on_a_long_tail() {
    let options = BalanceOptions { equal_sequences: true, ..BalanceOptions::default() };
    let balance = balance_long_tail(&options);
    assert!(balance.gap() <= 0.01, "{}", balance.gap());
    assert!(balance.replicas.iter().all(|own| own.iter().map(|one| one.sequences.len()).sum::<usize>() == 64));
}

#[test]
fn replicas_that_all_differ_in_speed_share_the_slots_of_long_sequences() {
    let speeds: Vec<f64> = (0..64_u32).map(|replica| 0.5 + f64::from(replica * 37 % 64) / 64.0).collect();
    // Where each of the longest had a slot of its own, the gaps were 0.3 and 1.0.
    for (micro_batches, most) in [(None, 0.06), (Some(10), 0.12)] {
        let options = BalanceOptions { speeds: Some(speeds.clone()), micro_batches, ..BalanceOptions::default() };
        let balance = balance_long_tail(&options);
        assert!(balance.gap() <= most, "{micro_batches:?}: {}", balance.gap());
    }
}

#[test]
fn a_slow_replica_costs_the_same_in_every_place() {
    let times = [0, 31, 63].map(|slow: usize| {
        let mut speeds = vec![1.0; 64];
        speeds[slow] = 0.5;
        let options = BalanceOptions { equal_sequences: true, speeds: Some(speeds), ..BalanceOptions::default() };
        let case = Case { lengths: long_tail(256, 32_768), replicas: 64, cap: 32_768, coefficients: (1.0, 24_576.0) };
        case.under(Barrier::MicroBatch, &options).unwrap().iteration_ms
    });
    // A slow first replica had the longest sequence, and the step took twice the time.
    assert!(times.iter().all(|&time| time <= times[2] * 1.01), "{times:?}");
}

/// The balance of 4,096 sequences over 64 replicas with one barrier per micro-batch.
fn balance_long_tail(options: &BalanceOptions) -> Balance {
    let cost = SequenceCost::new(1.0, 24_576.0).unwrap();
    let balancer = Balancer::new(64, 32_768, cost, Barrier::MicroBatch, options).unwrap();
    balancer.balance(&Batch::new(&long_tail(4_096, 32_768), None).unwrap()).unwrap()
}

#[test]
fn full_replicas_need_no_more_micro_batches_than_the_tokens() {
    // Short sequences fill 99.7 % of the positions of 384 micro-batches.
    let (cap, slots) = (32_768, 384);
    let mut lengths = long_tail(4_096, 32_768);
    while lengths.iter().sum::<i64>() > cap * slots * 997 / 1_000 {
        lengths.pop();
    }
    let case = Case { lengths, replicas: 64, cap: cap.unsigned_abs(), coefficients: (1.0, 24_576.0) };
    let balance = case.balance(Barrier::Step);
    // An assignment by time alone needs a seventh micro-batch on many replicas.
    assert!(packed(&case, &longest_first(&case)) > 395);
    assert!(balance.micro_batches().count() <= 384, "{}", balance.micro_batches().count());
    assert!(balance.gap() <= 0.001, "{}", balance.gap());
}

#[test]
fn a_full_batch_takes_the_fewest_slots() {
    // With 0.4 % of free positions, an assignment to all micro-batches at once leaves some sequences without a place.
    let lengths = long_tail(16_384, 20_000);
    let tokens = u64::try_from(lengths.iter().sum::<i64>()).unwrap();
    let cap = tokens.div_ceil(64 * 30) * 1_004 / 1_000;
    let case = Case { lengths, replicas: 64, cap, coefficients: (1.0, 24_576.0) };
    assert_eq!(case.balance(Barrier::MicroBatch).replicas[0].len(), 30);
}

#[test]
fn replicas_without_a_sequence_take_part_in_every_barrier() {
    let case = Case { lengths: vec![5, 3], replicas: 4, cap: 10, coefficients: (0.0, 1.0) };
    let counts = |barrier| case.balance(barrier).replicas.iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(counts(Barrier::MicroBatch), [1, 1, 1, 1]);
    assert_eq!(counts(Barrier::Step), [1, 1, 0, 0]);
}

/// The errors of a balance whose cancellation fails at once, and how often it was called.
fn cancelled(barrier: Barrier, replicas: i64, extra: Option<&[i64]>, options: &BalanceOptions) -> (Error, usize) {
    let n = 20_000;
    let lengths: Vec<i64> = (0..n).map(|at| 11_000 + at * 21_768 / n).collect();
    let calls = Cell::new(0);
    let cancel = || {
        calls.set(calls.get() + 1);
        Err(Error::Stopped)
    };
    let cost = SequenceCost::new(1.0, 24_576.0).unwrap();
    let balancer = Balancer::new(replicas, 32_768, cost, barrier, options).unwrap();
    let values = SequenceValues { extra_tokens: extra, ..SequenceValues::default() };
    let error = balancer.balance_values(&Batch::new(&lengths, None).unwrap(), &values, &cancel).unwrap_err();
    (error, calls.get())
}

#[test]
fn the_first_error_of_the_cancellation_ends_a_long_balance() {
    let free = BalanceOptions { allow_empty: true, ..BalanceOptions::default() };
    let unequal = BalanceOptions { speeds: Some((1..=8_u32).map(f64::from).collect()), ..free.clone() };
    let equal = BalanceOptions { equal_sequences: true, ..unequal.clone() };
    let extra_cap = BalanceOptions { cap_extra_tokens: Some(200), ..free.clone() };
    let extra: Vec<i64> = (0..20_000).map(|at| at * 7_919 % 100).collect();
    let (slot, step) = (Barrier::MicroBatch, Barrier::Step);
    for (barrier, replicas, extra, options) in [
        (slot, 1, None, &free),
        (slot, 8, None, &unequal),
        (slot, 8, None, &equal),
        (slot, 8, Some(extra.as_slice()), &extra_cap),
        (step, 8, Some(extra.as_slice()), &extra_cap),
    ] {
        let (error, calls) = cancelled(barrier, replicas, extra, options);
        assert_eq!((error, calls), (Error::Stopped, 1), "{barrier:?} {options:?}");
    }
}

#[test]
fn the_cancellation_of_a_small_balance_is_never_called() {
    let case = Case { lengths: long_tail(512, 4_096), replicas: 8, cap: 4_096, coefficients: (1.0, 24_576.0) };
    let options = BalanceOptions::default();
    let balancer = Balancer::new(8, 4_096, case.cost(), Barrier::MicroBatch, &options).unwrap();
    let batch = Batch::new(&case.lengths, None).unwrap();
    assert!(balancer.balance_values(&batch, &SequenceValues::default(), &|| Err(Error::Stopped)).is_ok());
}

#[test]
fn batches_that_cannot_be_balanced_are_named() {
    let cost = SequenceCost::new(1.0, 1.0).unwrap();
    for (replicas, written) in [(0, "0"), (-1, "-1"), ((1 << 20) + 1, "1,048,577")] {
        let error = Balancer::new(replicas, 10, cost, Barrier::Step, &BalanceOptions::default()).unwrap_err();
        assert_eq!(error.code(), "argument_invalid");
        assert!(error.to_string().contains(&format!("replicas is {written}:")));
    }
    for (cap, written) in [(0, "0"), (-5, "-5"), (1 << 33, "8,589,934,592")] {
        let error = Balancer::new(2, cap, cost, Barrier::Step, &BalanceOptions::default()).unwrap_err();
        assert_eq!(error.code(), "argument_invalid");
        assert!(error.to_string().contains(&format!("cap_tokens is {written}:")));
    }
    let balancer = Balancer::new(2, 10, cost, Barrier::Step, &BalanceOptions::default()).unwrap();
    let error = balancer.balance(&Batch::new(&[3, 11, 11], None).unwrap()).unwrap_err();
    assert_eq!(error.code(), "sequence_too_long");
    assert!(error.to_string().contains("sequence 1 has 11 tokens"), "{error}");
}
