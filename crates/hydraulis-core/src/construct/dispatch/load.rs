//! The running load of a replica.

use crate::construct::pack::Packer;
use crate::units::{Millis, Tokens};

/// Sums over a replica's sequences, and its estimated end.
#[derive(Clone, Copy, Debug, Default)]
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

    /// The tokens of its sequences.
    pub(super) fn tokens(self) -> Tokens {
        self.tokens
    }
}
