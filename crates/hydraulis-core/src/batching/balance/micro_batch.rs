//! A micro-batch, during and after its filling.

use crate::batching::balance::workload::Workload;
use crate::units::{Millis, Tokens};

/// Sequences that run together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MicroBatch {
    /// The ids of the sequences, longest first; empty where a replica only takes part in the barrier.
    pub sequences: Vec<usize>,
    /// The tokens of all sequences.
    pub tokens: Tokens,
    /// The time of all sequences.
    pub ms: Millis,
}

impl MicroBatch {
    /// A micro-batch of these sequences, which come longest first.
    pub(super) fn of(sequences: Vec<usize>, workload: &Workload) -> MicroBatch {
        let tokens = sequences.iter().map(|&id| workload.tokens[id]).sum();
        MicroBatch { ms: workload.total_ms(&sequences), tokens, sequences }
    }

    /// Adds one more sequence, which is no longer than the sequences present.
    pub(super) fn take(&mut self, id: usize, workload: &Workload) {
        self.sequences.push(id);
        self.tokens += workload.tokens[id];
        self.ms += workload.ms[id];
    }

    /// The number of tokens that the micro-batch can still take.
    pub(super) fn room(&self, workload: &Workload) -> Tokens {
        workload.cap - self.tokens
    }
}
