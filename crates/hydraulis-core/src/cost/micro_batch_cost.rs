//! The time of a micro-batch under a scheme.

use crate::units::{Millis, Tokens};

/// The coefficients of a micro-batch's time: the sum over its sequences of `a s^2 + b s`, and `c`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MicroBatchCost {
    /// Milliseconds per squared token of a sequence: `a`.
    pub(crate) quadratic_ms_per_token2: f64,
    /// Milliseconds per token: `b`.
    pub(crate) linear_ms_per_token: f64,
    /// Time of every micro-batch in addition to its sequences: `c`.
    pub(crate) fixed: Millis,
}

impl MicroBatchCost {
    /// The times on ranks of this speed, relative to the measured ranks.
    pub(crate) fn at_speed(self, speed: f64) -> MicroBatchCost {
        MicroBatchCost {
            quadratic_ms_per_token2: self.quadratic_ms_per_token2 / speed,
            linear_ms_per_token: self.linear_ms_per_token / speed,
            fixed: Millis(self.fixed.0 / speed),
        }
    }

    /// The time that one sequence adds.
    pub(crate) fn sequence_ms(&self, tokens: Tokens) -> Millis {
        let tokens = tokens.as_f64();
        Millis((self.quadratic_ms_per_token2 * tokens + self.linear_ms_per_token) * tokens)
    }

    /// The time of a micro-batch of these sequences.
    pub(crate) fn micro_batch_ms(&self, sequences: impl Iterator<Item = Tokens>) -> Millis {
        sequences.map(|tokens| self.sequence_ms(tokens)).sum::<Millis>() + self.fixed
    }
}
