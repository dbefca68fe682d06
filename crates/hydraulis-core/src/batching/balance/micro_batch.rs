//! A micro-batch, during and after its filling. Until the balance is complete, its time is that of its sequences alone.

use crate::batching::balance::workload::Workload;
use crate::units::{Millis, Tokens};

/// Sequences that run together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MicroBatch {
    /// The ids of the sequences, longest first; empty where a replica only takes part in the barrier.
    pub sequences: Vec<usize>,
    /// The tokens of all sequences.
    pub tokens: Tokens,
    /// The extra tokens of all sequences; 0 without a cap on them.
    pub extra_tokens: Tokens,
    /// The time of all sequences and of the micro-batch itself on its replica.
    pub ms: Millis,
}

impl MicroBatch {
    /// A micro-batch of these sequences, which come longest first.
    pub(super) fn of(sequences: Vec<usize>, workload: &Workload) -> MicroBatch {
        let mut micro_batch = MicroBatch { sequences: Vec::with_capacity(sequences.len()), ..MicroBatch::default() };
        for id in sequences {
            micro_batch.take(id, workload);
        }
        micro_batch
    }

    /// Adds one more sequence, which is no longer than the sequences present.
    pub(super) fn take(&mut self, id: usize, workload: &Workload) {
        self.sequences.push(id);
        self.tokens += workload.tokens[id];
        self.extra_tokens += workload.extra[id];
        self.ms += workload.ms[id];
    }

    /// Whether a sequence fits under both caps.
    pub(super) fn fits(&self, id: usize, workload: &Workload) -> bool {
        self.tokens + workload.tokens[id] <= workload.cap
            && self.extra_tokens + workload.extra[id] <= workload.extra_cap
    }

    /// The number of tokens that the micro-batch can still take.
    pub(super) fn room(&self, workload: &Workload) -> Tokens {
        workload.cap - self.tokens
    }
}
