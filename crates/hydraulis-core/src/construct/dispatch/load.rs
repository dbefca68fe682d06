//! The running loads of replicas, and the order of their times.

use std::collections::BTreeSet;

use crate::construct::pack::Packer;
use crate::units::{Millis, Tokens};

/// Sums over a replica's sequences, and its estimated end.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Load {
    ms: Millis,
    tokens: Tokens,
    longest: Millis,
    pub(crate) end: Millis,
}

impl Load {
    /// The load with one more sequence of `tokens` tokens.
    pub(crate) fn with(self, id: usize, tokens: Tokens, packer: &Packer) -> Load {
        let mut load = self.grown(id, tokens, packer);
        load.end = load.end_with(Tokens(0), 0.0, packer);
        load
    }

    /// The same without an estimated end.
    pub(super) fn grown(self, id: usize, tokens: Tokens, packer: &Packer) -> Load {
        let own = packer.sequence_ms()[id];
        let (ms, tokens, longest) = (self.ms + own, self.tokens + tokens, self.longest.max(own));
        Load { ms, tokens, longest, ..self }
    }

    /// Estimated end of the replica when it has `expected` tokens, if each missing token takes `rate`.
    pub(super) fn end_with(self, expected: Tokens, rate: f64, packer: &Packer) -> Millis {
        let expected = expected.max(self.tokens);
        let missing = Millis((expected - self.tokens).as_f64() * rate);
        packer.estimate(self.ms + missing, expected, self.longest)
    }

    /// The end without a pipeline as if no micro-batch took the least time, into which more sequences may fit.
    pub(super) fn end_of_work(self, packer: &Packer) -> Millis {
        self.end.min(packer.end_of_work(self.ms, self.tokens).unwrap_or(self.end))
    }

    /// The tokens of its sequences.
    pub(super) fn tokens(self) -> Tokens {
        self.tokens
    }
}

/// Replicas by time; among equals the lower index comes first.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranking {
    by_time: BTreeSet<(Millis, usize)>,
}

impl Ranking {
    /// A ranking of replicas with these times.
    pub(super) fn new(times: impl Iterator<Item = (usize, Millis)>) -> Ranking {
        Ranking { by_time: times.map(|(replica, time)| (time, replica)).collect() }
    }

    /// The replica that ends last; the lower index among equals.
    pub(super) fn slowest(&self) -> Option<usize> {
        let (time, _) = self.by_time.last()?;
        self.by_time.range((*time, 0)..).next().map(|(_, replica)| *replica)
    }

    /// Replicas, the earliest to end first.
    pub(super) fn earliest(&self) -> impl Iterator<Item = usize> + '_ {
        self.by_time.iter().map(|(_, replica)| *replica)
    }

    /// Updates a replica's time.
    pub(super) fn change(&mut self, replica: usize, before: Millis, after: Millis) {
        self.by_time.remove(&(before, replica));
        self.by_time.insert((after, replica));
    }
}
