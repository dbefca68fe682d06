//! Lower bounds on the time of every balance under the options.
//!
//! Let `W` be the work of all sequences, `c` the fixed time of a micro-batch, `S` the sum of the replicas' speeds, `N`
//! a lower bound on the number of all micro-batches, `k` the least number of micro-batches of a replica, and `f` the
//! fewest sequences of a replica. In a time `T`, a replica of speed `s` does at most `s T` work, of which each of its
//! micro-batches takes `c`. So `T` is at least each of these times, whichever barrier the replicas have:
//! - `(W + c N) / S`;
//! - for each `j`, the `j` longest sequences and `c k` at the speed of the `j` fastest replicas, because these
//!   sequences run on at most `j` replicas;
//! - the longest sequence with the `f - 1` shortest others and `c k` at the greatest speed;
//! - the `f` shortest sequences and `c k` at the least speed.
//!
//! Where every replica has exactly `k` micro-batches, let `G_1` be the most work that fits into `k` of them. For each
//! `j`, the `j` fastest replicas do at most `j G_1` of the work, so `T` is at least `(W - j G_1 + c k (R - j))` at the
//! speed of the other replicas together.
//!
//! With one barrier per micro-batch, let `m_j` be the work of the longest sequence such that the sequences of at least
//! as much work do not fit into `j - 1` slots. At least `j` slots hold one of them, each of which takes at least
//! `a_j`: `c + m_j` at the greatest speed, and at least `c` at the least speed. Let `A` be the sum of the first `j`
//! times `a`, and `G` the most work that fits into `j` slots: a fractional knapsack by work per token, for each cap.
//! These slots do at most `min(S A - c R j, G)` of the work in the time `A`, and any further time does at most `S`
//! times its length, of which the other slots take `c R` each. So the time is at least
//! `A + (W - min(S A - c R j, G) + c R (k - j)) / S`. Where no micro-batch may be empty, the sums of the `R`-th,
//! `2 R`-th, .. shortest sequences bound the slots as well.

use crate::batching::balance::workload::Workload;
use crate::units::{Millis, Tokens, count};

/// Allowance for rounding: the balance sums the same terms in another order.
const ROUNDING: f64 = 1.0 - 1e-9;

/// The bound with one barrier per step.
pub(in crate::batching::balance) fn by_step(workload: &Workload) -> Millis {
    let least = workload.rules.least();
    let all = workload.least_micro_batches.max(least * workload.replicas);
    Millis(Facts::new(workload).any_barrier(all, least) * ROUNDING)
}

/// The bound with one barrier per micro-batch.
pub(in crate::batching::balance) fn by_slot(workload: &Workload) -> Millis {
    let slots = least_slots(workload);
    let facts = Facts::new(workload);
    Millis(facts.of_slots(slots).max(facts.long_slots(slots)) * ROUNDING)
}

/// The bound with one barrier per micro-batch for equal replicas, where `without_fixed` is the bound for any number of
/// slots without a fixed time.
pub(in crate::batching::balance) fn by_equal_slot(workload: &Workload, without_fixed: Millis) -> Millis {
    let slots = least_slots(workload);
    let fixed = workload.rules.fixed * (count(slots) * ROUNDING);
    (without_fixed + fixed).max(Millis(Facts::new(workload).of_slots(slots) * ROUNDING))
}

fn least_slots(workload: &Workload) -> usize {
    let rules = &workload.rules;
    let needed = workload.least_slots().max(rules.least());
    rules.numbers.permitted(needed).unwrap_or(needed)
}

/// The numbers from which the bounds follow.
#[derive(Debug)]
struct Facts<'a> {
    workload: &'a Workload<'a>,
    /// The work of all sequences, and of each one, longest first.
    work: f64,
    longest_first: Vec<f64>,
    fixed: f64,
    /// The speeds of the replicas, fastest first, and their sum.
    speeds: Vec<f64>,
    speed: f64,
}

impl Facts<'_> {
    fn new<'a>(workload: &'a Workload<'a>) -> Facts<'a> {
        let longest_first: Vec<f64> = workload.longest_first.iter().map(|&id| workload.ms[id].0).collect();
        let mut speeds: Vec<f64> = workload.rules.paces.iter().map(|pace| 1.0 / pace).collect();
        speeds.sort_unstable_by(|one, other| other.total_cmp(one));
        Facts {
            work: longest_first.iter().sum(),
            longest_first,
            fixed: workload.rules.fixed.0,
            speed: speeds.iter().sum(),
            speeds,
            workload,
        }
    }

    /// The bounds that follow from the number of slots.
    fn of_slots(&self, slots: usize) -> f64 {
        self.any_barrier(slots * self.workload.replicas, slots).max(self.filled_slots(slots))
    }

    /// The bounds that hold for both barriers: `all` micro-batches, and `least` of each replica.
    fn any_barrier(&self, all: usize, least: usize) -> f64 {
        let fixed = self.fixed * count(least.max(1));
        let (mut work, mut speed) = (fixed, 0.0);
        let mut bound = (self.work + self.fixed * count(all)) / self.speed;
        for (ms, replica) in self.longest_first.iter().zip(&self.speeds) {
            (work, speed) = (work + ms, speed + replica);
            bound = bound.max(work / speed);
        }
        bound = bound.max(self.exact_number());
        let (Some(fastest), Some(slowest)) = (self.speeds.first(), self.speeds.last()) else { return bound };
        let fewest = self.workload.rules.fewest(self.longest_first.len());
        let shortest = |number: usize| self.longest_first.iter().rev().take(number).sum::<f64>();
        if let Some(others) = fewest.checked_sub(1) {
            bound = bound.max((self.longest_first[0] + shortest(others) + fixed) / fastest);
            bound = bound.max((shortest(fewest) + fixed) / slowest);
        }
        bound
    }

    /// The bound by the caps of an exact number of micro-batches, for replicas of unequal speed.
    fn exact_number(&self) -> f64 {
        let rules = &self.workload.rules;
        let Some(number) = rules.numbers.exact.filter(|_| !rules.is_even()) else { return 0.0 };
        let fitting =
            self.by_work_per_token().iter().map(|knapsack| knapsack.most_work(number)).fold(self.work, f64::min);
        let (mut left, mut speed, mut bound) = (self.work, self.speed, 0.0_f64);
        for (faster, replica) in self.speeds.iter().enumerate() {
            let fixed = self.fixed * count(number * (self.speeds.len() - faster));
            bound = bound.max((left + fixed) / speed);
            (left, speed) = (left - fitting, speed - replica);
            if left <= 0.0 {
                break;
            }
        }
        bound
    }

    /// The bound by the slots that hold long sequences.
    fn long_slots(&self, slots: usize) -> f64 {
        let (Some(fastest), Some(slowest)) = (self.speeds.first(), self.speeds.last()) else { return 0.0 };
        let fixed_slot = self.fixed * count(self.workload.replicas);
        let by_cap = self.by_work_per_token();
        let mut bound: f64 = 0.0;
        let mut least = 0.0;
        for (number, longest) in (1..=self.workload.rules.budget.bound_slots).zip(self.longest_of_slots()) {
            least += ((self.fixed + longest) / fastest).max(self.fixed / slowest);
            let fitting = by_cap.iter().map(|knapsack| knapsack.most_work(number * self.workload.replicas));
            let done = fitting.fold(self.speed * least - fixed_slot * count(number), f64::min).min(self.work);
            let others = fixed_slot * count(slots.saturating_sub(number));
            bound = bound.max(least + (self.work - done + others) / self.speed);
        }
        bound
    }

    /// For each slot, the work of the longest sequence such that the sequences of at least as much work do not fit
    /// into the slots before it.
    fn longest_of_slots(&self) -> impl Iterator<Item = f64> {
        let workload = self.workload;
        let (mut tokens, mut extra) = (Tokens::default(), Tokens::default());
        let mut smallest = workload.longest_first.first().copied().unwrap_or_default();
        let mut slots = 0;
        (1..).zip(&workload.longest_first).flat_map(move |(number, &id): (usize, _)| {
            tokens += workload.tokens[id];
            extra += workload.extra[id];
            if workload.tokens[id] < workload.tokens[smallest] {
                smallest = id;
            }
            let by_number = number.div_ceil(workload.together(smallest));
            let by_extra = if extra.0 > 0 { extra.div_ceil(workload.extra_cap) } else { 0 };
            let needed = tokens.div_ceil(workload.cap).max(by_extra).max(by_number).div_ceil(workload.replicas);
            let further = needed.saturating_sub(slots);
            slots += further;
            std::iter::repeat_n(workload.ms[id].0, further)
        })
    }

    /// The bound by micro-batches that each have a sequence: the shortest ones, in slots of similar time.
    fn filled_slots(&self, slots: usize) -> f64 {
        let Some(fastest) = self.speeds.first().filter(|_| !self.workload.rules.allow_empty) else { return 0.0 };
        let each = self.longest_first.iter().rev().skip(self.workload.replicas - 1).step_by(self.workload.replicas);
        each.take(slots).map(|ms| (ms + self.fixed) / fastest).sum()
    }

    fn by_work_per_token(&self) -> Vec<Knapsack> {
        let workload = self.workload;
        let mut knapsacks = vec![Knapsack::new(&workload.tokens, &workload.ms, workload.cap)];
        if workload.rules.extra_cap.is_some() {
            knapsacks.push(Knapsack::new(&workload.extra, &workload.ms, workload.extra_cap));
        }
        knapsacks
    }
}

/// The sequences in the order of their work per token, as sums of tokens and work.
#[derive(Debug)]
struct Knapsack {
    cap: Tokens,
    sums: Vec<(Tokens, f64)>,
}

impl Knapsack {
    fn new(tokens: &[Tokens], ms: &[Millis], cap: Tokens) -> Knapsack {
        let mut ids: Vec<usize> = (0..tokens.len()).collect();
        let light = |id: usize| Millis(-ms[id].0 / tokens[id].as_f64());
        ids.sort_by_key(|&id| light(id));
        let sum = |sum: &mut (Tokens, f64), id: usize| {
            *sum = (sum.0 + tokens[id], sum.1 + ms[id].0);
            Some(*sum)
        };
        Knapsack { cap, sums: ids.into_iter().scan((Tokens::default(), 0.0), sum).collect() }
    }

    /// The most work of these sequences, or parts of them, that fits into micro-batches.
    fn most_work(&self, micro_batches: usize) -> f64 {
        let room = self.cap.0.saturating_mul(u64::try_from(micro_batches).unwrap_or(u64::MAX));
        let fitting = self.sums.partition_point(|&(tokens, _)| tokens.0 <= room);
        let (tokens, work) = fitting.checked_sub(1).map_or((Tokens::default(), 0.0), |last| self.sums[last]);
        let Some(&(next_tokens, next_work)) = self.sums.get(fitting) else { return work };
        work + (next_work - work) * count(room - tokens.0) / (next_tokens - tokens).as_f64()
    }
}
