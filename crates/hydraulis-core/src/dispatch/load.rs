//! What a replica has taken so far.

use crate::pack::Packer;
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
        let own = packer.sequence_ms()[id];
        let (ms, tokens, longest) = (self.ms + own, self.tokens + tokens, self.longest.max(own));
        Load { ms, tokens, longest, end: packer.estimate(ms, tokens, longest) }
    }
}
