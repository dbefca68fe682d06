//! What a replica has taken so far.

use crate::construct::pack::Packer;
use crate::units::{Millis, Tokens};

/// Sums over a replica's sequences, and about when it ends.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    ms: Millis,
    tokens: Tokens,
    longest: Millis,
    pub(crate) end: Millis,
}

impl Load {
    /// The load with one sequence more, of so many tokens.
    pub(crate) fn with(self, id: usize, tokens: Tokens, packer: &Packer) -> Load {
        let mut load = self.grown(id, tokens, packer);
        load.end = load.end_with(Tokens(0), 0.0, packer);
        load
    }

    /// The same, its end not yet estimated.
    pub(super) fn grown(self, id: usize, tokens: Tokens, packer: &Packer) -> Load {
        let own = packer.sequence_ms()[id];
        let (ms, tokens, longest) = (self.ms + own, self.tokens + tokens, self.longest.max(own));
        Load { ms, tokens, longest, ..self }
    }

    /// About when the replica ends once it holds `expected` tokens, of which each that is missing takes `rate`.
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
