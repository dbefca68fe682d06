//! The balancer and its result, the balance.

use crate::batch::Batch;
use crate::batching::balance::micro_batch::MicroBatch;
use crate::batching::balance::workload::{SequenceCost, Workload};
use crate::batching::balance::{bound, by_slot, by_step};
use crate::error::{Error, Result};
use crate::units::{Millis, Tokens};

/// The most ranks that a cluster may have. A mistyped count fails at this limit and not in an allocation.
const MAX_REPLICAS: i64 = 1 << 20;
/// The greatest token cap. Sums over any number of micro-batches of this size stay exact in a float.
const MAX_CAP: i64 = 1 << 32;

/// The point at which the replicas wait for one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// Once per step, for the gradients (DDP, ZeRO-1): the time of the step is the slowest replica's total.
    Step,
    /// In every micro-batch, for the parameters (FSDP, ZeRO-3): the time of the step is the sum over the slots of
    /// each slot's longest micro-batch.
    MicroBatch,
}

/// Balances batches over equal replicas.
#[derive(Clone, Copy, Debug)]
pub struct Balancer {
    replicas: usize,
    cap: Tokens,
    cost: SequenceCost,
    barrier: Barrier,
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
}

impl Balancer {
    /// A balancer for `replicas` replicas, whose micro-batches hold at most `cap_tokens` tokens each.
    pub fn new(replicas: i64, cap_tokens: i64, cost: SequenceCost, barrier: Barrier) -> Result<Balancer> {
        let count = checked(replicas, MAX_REPLICAS);
        let count = count.ok_or(Error::ReplicaCount { replicas, limit: MAX_REPLICAS })?;
        let cap = checked(cap_tokens, MAX_CAP);
        let cap = cap.ok_or(Error::TokenLimit { field: "cap_tokens", value: cap_tokens, limit: MAX_CAP })?;
        Ok(Balancer { replicas: count, cap: Tokens(cap), cost, barrier })
    }

    /// Assigns the sequences of a batch to replicas and micro-batches.
    pub fn balance(&self, batch: &Batch) -> Result<Balance> {
        let (sequence, tokens) = batch.longest();
        if tokens > self.cap {
            return Err(Error::SequenceAboveCap { sequence, tokens, cap: self.cap });
        }
        let workload = Workload::new(batch, self.cost, self.replicas, self.cap);
        let (replicas, lower_bound_ms) = match self.barrier {
            Barrier::Step => (by_step::replicas(&workload), bound::by_step(&workload)),
            Barrier::MicroBatch => (by_slot::replicas(&workload), bound::by_slot(&workload)),
        };
        let iteration_ms = match self.barrier {
            Barrier::Step => by_step::longest_total(&replicas),
            Barrier::MicroBatch => total_of_longest(&replicas),
        };
        Ok(Balance { replicas, iteration_ms, lower_bound_ms })
    }
}

impl Balance {
    /// The greatest possible distance from the optimum: `iteration_ms / lower_bound_ms - 1`.
    pub fn gap(&self) -> f64 {
        self.iteration_ms.0 / self.lower_bound_ms.0 - 1.0
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

fn checked<T: TryFrom<i64>>(value: i64, limit: i64) -> Option<T> {
    (1..=limit).contains(&value).then(|| T::try_from(value).ok()).flatten()
}

fn total_of_longest(replicas: &[Vec<MicroBatch>]) -> Millis {
    let slots = replicas.first().map(Vec::len).unwrap_or_default();
    let longest = |slot: usize| replicas.iter().map(|replica| replica[slot].ms).max().unwrap_or_default();
    (0..slots).map(longest).sum()
}
