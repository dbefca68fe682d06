//! The balancer and its result, the balance.

use crate::batch::Batch;
use crate::batching::balance::items::{Items, Members, SequenceValues};
use crate::batching::balance::micro_batch::MicroBatch;
use crate::batching::balance::options::{BalanceOptions, Rules};
use crate::batching::balance::workload::{SequenceCost, Workload};
use crate::batching::balance::{bound, by_slot, by_step, constrained};
use crate::cancellation::{Cancellation, CountedCancellation, NEVER_CANCELLED};
use crate::error::{BalanceError, Error, Result};
use crate::units::{Millis, Tokens, count};

/// The most ranks that a cluster may have. A mistyped count fails at this limit and not in an allocation.
const MAX_REPLICAS: i64 = 1 << 20;
/// The greatest token cap. Sums over any number of micro-batches of this size stay exact in a float.
pub(super) const MAX_CAP: i64 = 1 << 32;
/// The most micro-batches of all replicas together that options may demand of a batch with fewer sequences.
const MAX_MICRO_BATCHES: usize = 1 << 24;

/// The point at which the replicas wait for one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// Once per step, for the gradients (DDP, ZeRO-1): the time of the step is the slowest replica's total.
    Step,
    /// In every micro-batch, for the parameters (FSDP, ZeRO-3): the time of the step is the sum over the slots of
    /// each slot's longest micro-batch.
    MicroBatch,
}

/// Balances batches over replicas.
#[derive(Clone, Debug)]
pub struct Balancer {
    cap: Tokens,
    cost: SequenceCost,
    barrier: Barrier,
    rules: Rules,
}

/// The micro-batches of equal replicas, the time of their step, and a lower bound on that time.
#[derive(Clone, Debug, PartialEq)]
pub struct Balance {
    /// The micro-batches of each replica. With a barrier in every micro-batch, all replicas have the same number of
    /// micro-batches, of which some may be empty.
    pub replicas: Vec<Vec<MicroBatch>>,
    /// The time of the step.
    pub iteration_ms: Millis,
    /// The lower bound: no balance under the cap has a shorter step.
    pub lower_bound_ms: Millis,
    /// The factor of each micro-batch's mean loss, replica by replica. Where the replicas average their gradients, the
    /// weighted losses give the mean over all target tokens of the step.
    pub loss_weights: Vec<f64>,
}

impl Balancer {
    /// A balancer for `replicas` replicas, whose micro-batches hold at most `cap_tokens` tokens each.
    pub fn new(
        replicas: i64,
        cap_tokens: i64,
        cost: SequenceCost,
        barrier: Barrier,
        options: &BalanceOptions,
    ) -> Result<Balancer> {
        let count = checked(replicas, MAX_REPLICAS);
        let count: usize = count.ok_or(Error::ReplicaCount { replicas, limit: MAX_REPLICAS })?;
        let cap = checked(cap_tokens, MAX_CAP);
        let cap = cap.ok_or(Error::TokenLimit { field: "cap_tokens", value: cap_tokens, limit: MAX_CAP })?;
        Ok(Balancer { cap: Tokens(cap), cost, barrier, rules: Rules::new(options, count)? })
    }

    /// Assigns the sequences of a batch to replicas and micro-batches.
    pub fn balance(&self, batch: &Batch) -> Result<Balance> {
        self.balance_values(batch, &SequenceValues::default(), NEVER_CANCELLED)
    }

    /// Assigns sequences with values of their own to replicas and micro-batches; an error from `cancellation` ends the
    /// work on it.
    pub fn balance_values(
        &self,
        batch: &Batch,
        values: &SequenceValues,
        cancellation: Cancellation,
    ) -> Result<Balance> {
        let cancellation = CountedCancellation::new(cancellation);
        let (sequence, tokens) = batch.longest();
        if tokens > self.cap {
            return Err(Error::SequenceAboveCap { sequence, tokens, cap: self.cap });
        }
        let rules = self.rules.clone();
        let rises_with_tokens = values.are_none() && rules.extra_cap.is_none();
        let mut items = Items::new(batch, values, self.cost, self.cap, rules.extra_cap)?;
        if rules.equal_sequences {
            items.check_equal_groups(values.groups)?;
        }
        let members = items.members.take();
        let workload = Workload::new(items, self.cap, rules, Some(&cancellation));
        self.finish(batch, &workload, members.as_ref(), rises_with_tokens)
    }

    /// Balances a workload.
    fn finish(
        &self,
        batch: &Batch,
        workload: &Workload,
        members: Option<&Members>,
        rises_with_tokens: bool,
    ) -> Result<Balance> {
        self.check_number(workload, members.is_some())?;
        let is_plain = rises_with_tokens && workload.rules.has_unit_speeds() && !workload.rules.equal_sequences;
        let (packed, lower_bound_ms) = match self.barrier {
            Barrier::Step if is_plain && workload.rules.has_free_steps() => {
                (by_step::replicas(workload).ok_or(None), bound::by_step(workload))
            }
            Barrier::Step => (constrained::by_step::replicas(workload), constrained::bound::by_step(workload)),
            Barrier::MicroBatch if is_plain => {
                let bound = constrained::bound::by_equal_slot(workload, bound::by_slot(workload));
                (by_slot::slots(workload).ok_or(None).map(|slots| by_replica(slots, workload.replicas)), bound)
            }
            Barrier::MicroBatch => {
                let slots = constrained::by_slot::slots(workload);
                let mut bound = constrained::bound::by_slot(workload);
                if rises_with_tokens && workload.rules.has_unit_speeds() {
                    bound = bound.max(constrained::bound::by_equal_slot(workload, bound::by_slot(workload)));
                }
                (slots.ok_or(None).map(|slots| by_replica(slots, workload.replicas)), bound)
            }
        };
        workload.cancellation.map_or(Ok(()), CountedCancellation::result)?;
        let mut replicas = packed.map_err(|tried| self.refusal(workload, members.is_some(), tried))?;
        for (replica, own) in replicas.iter_mut().enumerate() {
            for micro_batch in own {
                micro_batch.ms = workload.time(micro_batch.ms, 1, replica);
                if let Some(members) = members {
                    members.expand(micro_batch, batch.tokens());
                }
            }
        }
        let iteration_ms = match self.barrier {
            Barrier::Step => by_step::longest_total(&replicas),
            Barrier::MicroBatch => total_of_longest(&replicas),
        };
        let loss_weights = loss_weights(&replicas, batch);
        Ok(Balance { replicas, iteration_ms, lower_bound_ms, loss_weights })
    }

    /// Refuses a workload whose sequences do not fill the least number of micro-batches. If micro-batches may be empty,
    /// it refuses numbers that no memory holds.
    fn check_number(&self, workload: &Workload, are_groups: bool) -> Result<()> {
        let (rules, sequences, replicas) = (&workload.rules, workload.tokens.len(), workload.replicas);
        let micro_batches = self.least_micro_batches(workload);
        let needed = match self.barrier {
            Barrier::Step => least_of_all(workload),
            Barrier::MicroBatch => replicas * micro_batches,
        };
        if !rules.allow_empty && sequences < needed {
            let kind = kind(are_groups);
            let most = micro_batches.max(most_micro_batches(workload));
            let error = if needed == replicas * most {
                let micro_batches = most;
                BalanceError::TooFewSequences { sequences, kind, replicas, micro_batches, needed }
            } else {
                BalanceError::TooFewUnderCap { sequences, kind, replicas, needed }
            };
            return Err(error.into());
        }
        // A replica with a sequence has the first permitted number from 1 on.
        let micro_batches = micro_batches.max(rules.numbers.permitted(1).unwrap_or(1));
        if replicas * micro_batches > sequences.max(MAX_MICRO_BATCHES) {
            let limit = MAX_MICRO_BATCHES;
            return Err(BalanceError::TooManyMicroBatches { replicas, micro_batches, limit }.into());
        }
        Ok(())
    }

    /// The least number of micro-batches of a replica.
    fn least_micro_batches(&self, workload: &Workload) -> usize {
        let rules = &workload.rules;
        let needed = match self.barrier {
            Barrier::Step => rules.least(),
            Barrier::MicroBatch => rules.least().max(workload.least_slots()),
        };
        rules.numbers.permitted(needed).unwrap_or(needed)
    }

    /// The reason for which a workload of enough sequences has no balance in the number of micro-batches that was
    /// tried, or else in the least permitted one.
    fn refusal(&self, workload: &Workload, are_groups: bool, tried: Option<usize>) -> Error {
        let (sequences, replicas, cap) = (workload.tokens.len(), workload.replicas, self.cap);
        let (kind, tokens) = (kind(are_groups), workload.tokens.iter().copied().sum());
        let micro_batches = tried.or(workload.rules.numbers.exact).unwrap_or_else(|| most_micro_batches(workload));
        BalanceError::NoPacking { sequences, kind, tokens, micro_batches, replicas, cap }.into()
    }
}

impl Balance {
    /// The greatest possible distance from the optimum: `iteration_ms / lower_bound_ms - 1`.
    pub fn gap(&self) -> f64 {
        if self.lower_bound_ms > Millis::ZERO { self.iteration_ms.0 / self.lower_bound_ms.0 - 1.0 } else { 0.0 }
    }

    /// The ids of all sequences, replica by replica and micro-batch by micro-batch.
    pub fn sequences(&self) -> impl Iterator<Item = usize> {
        self.micro_batches().flat_map(|micro_batch| micro_batch.sequences.iter().copied())
    }

    /// The micro-batches of all replicas, one after another.
    pub fn micro_batches(&self) -> impl Iterator<Item = &MicroBatch> {
        self.replicas.iter().flatten()
    }
}

/// The least permitted number of micro-batches of the replica that has most of them.
fn most_micro_batches(workload: &Workload) -> usize {
    let rules = &workload.rules;
    rules.numbers.permitted(rules.least().max(workload.least_slots())).unwrap_or_else(|| rules.least())
}

/// With one barrier per step, a lower bound on the number of micro-batches of all replicas: one of them has at least
/// the mean number, and every other one the least.
fn least_of_all(workload: &Workload) -> usize {
    let rules = &workload.rules;
    let by_replica = most_micro_batches(workload) + (workload.replicas - 1) * rules.least();
    by_replica.max(rules.numbers.total(workload.least_micro_batches))
}

/// The noun for the items of a batch, in messages.
fn kind(are_groups: bool) -> &'static str {
    if are_groups { "groups" } else { "sequences" }
}

pub(super) fn checked<T: TryFrom<i64>>(value: i64, limit: i64) -> Option<T> {
    (1..=limit).contains(&value).then(|| T::try_from(value).ok()).flatten()
}

fn total_of_longest(replicas: &[Vec<MicroBatch>]) -> Millis {
    let slots = replicas.first().map(Vec::len).unwrap_or_default();
    let longest = |slot: usize| replicas.iter().map(|replica| replica[slot].ms).max().unwrap_or_default();
    (0..slots).map(longest).sum()
}

/// The micro-batches of each replica, from the micro-batches of each slot.
fn by_replica(slots: Vec<Vec<MicroBatch>>, number: usize) -> Vec<Vec<MicroBatch>> {
    let mut replicas = vec![Vec::new(); number];
    for slot in slots {
        for (replica, micro_batch) in replicas.iter_mut().zip(slot) {
            replica.push(micro_batch);
        }
    }
    replicas
}

fn loss_weights(replicas: &[Vec<MicroBatch>], batch: &Batch) -> Vec<f64> {
    let scale = count(replicas.len()) / count(batch.total_targets());
    let targets = |one: &MicroBatch| one.sequences.iter().map(|&id| batch.targets()[id]).sum::<u64>();
    replicas.iter().flatten().map(|one| count(targets(one)) * scale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The message for sequences of these tokens with one barrier per step.
    fn refused_step(lengths: &[i64], replicas: i64, cap: i64, options: &BalanceOptions) -> String {
        let cost = SequenceCost::new(0.0, 1.0).unwrap();
        let balancer = Balancer::new(replicas, cap, cost, Barrier::Step, options).unwrap();
        let error = balancer.balance(&Batch::new(lengths, None).unwrap()).unwrap_err();
        assert_eq!(error.code(), "batch_unplaceable");
        error.to_string()
    }

    #[test]
    fn one_barrier_per_step_needs_the_micro_batches_that_the_tokens_fill() {
        let twos = BalanceOptions { multiple_of: 2, ..BalanceOptions::default() };
        for (lengths, replicas, cap, needed) in [
            (vec![16; 3], 1, 16, "3 sequences, and 1 replicas with 4 micro-batches each need at least 4"),
            (vec![32; 7], 2, 50, "7 sequences, and 2 replicas with 4 micro-batches each need at least 8"),
            // One replica has four of them, and each of the others two.
            (vec![16; 7], 3, 16, "7 sequences, and 3 replicas need at least 8"),
        ] {
            let message = refused_step(&lengths, replicas, cap, &twos);
            assert!(message.contains(needed) && message.contains("allow_empty"), "{message}");
        }
        // Two micro-batches for each replica have room for the tokens, and not for these sequences.
        let message = refused_step(&[7, 21, 37, 36, 30, 24, 35], 2, 50, &twos);
        assert!(message.contains("into 4 micro-batches for each of 2 replicas"), "{message}");
    }

    /// The error of 20 sequences on 4,096 replicas under these options.
    fn refused(barrier: Barrier, options: &BalanceOptions) -> Error {
        let cost = SequenceCost::new(0.0, 1.0).unwrap();
        let balancer = Balancer::new(4096, 100, cost, barrier, options).unwrap();
        balancer.balance(&Batch::new(&[10; 20], None).unwrap()).unwrap_err()
    }

    #[test]
    fn numbers_that_no_memory_holds_are_refused_before_they_are_packed() {
        let exact = BalanceOptions { micro_batches: Some(1 << 20), ..BalanceOptions::default() };
        let multiple = BalanceOptions { multiple_of: 1 << 20, ..BalanceOptions::default() };
        for barrier in [Barrier::Step, Barrier::MicroBatch] {
            for options in [&exact, &multiple] {
                let error = refused(barrier, options);
                assert!(matches!(error, Error::Balance(BalanceError::TooFewSequences { needed: 4_294_967_296, .. })));
                let error = refused(barrier, &BalanceOptions { allow_empty: true, ..options.clone() });
                assert_eq!(error.code(), "argument_invalid");
                assert!(error.to_string().contains("4,096 replicas with 1,048,576 micro-batches each"), "{error}");
            }
        }
    }
}
