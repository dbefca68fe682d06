//! A micro-batch while it is filled, and after.

use crate::batching::balance::workload::Workload;
use crate::units::{Millis, Tokens};

/// Sequences that run together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MicroBatch {
    /// Their ids, longest first; none where a replica only takes part in the barrier.
    pub sequences: Vec<usize>,
    /// Their tokens.
    pub tokens: Tokens,
    /// Their time.
    pub ms: Millis,
}

impl MicroBatch {
    /// Of these sequences, longest first.
    pub(super) fn of(sequences: Vec<usize>, workload: &Workload) -> MicroBatch {
        let tokens = sequences.iter().map(|&id| workload.tokens[id]).sum();
        MicroBatch { ms: workload.total_ms(&sequences), tokens, sequences }
    }

    /// Takes one more sequence, no longer than those it has.
    pub(super) fn take(&mut self, id: usize, workload: &Workload) {
        self.sequences.push(id);
        self.tokens += workload.tokens[id];
        self.ms += workload.ms[id];
    }

    /// Tokens that it could still hold.
    pub(super) fn room(&self, workload: &Workload) -> Tokens {
        workload.cap - self.tokens
    }
}
