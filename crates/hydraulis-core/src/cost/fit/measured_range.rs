//! The range of a fit's points.

use serde::{Deserialize, Serialize};

use super::Measurement;
use crate::units::Tokens;

/// The upper ends of the measured micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredRange {
    /// The longest sequence.
    pub longest_tokens: Tokens,
    /// The most tokens of a micro-batch.
    pub micro_batch_tokens: Tokens,
}

impl MeasuredRange {
    /// The range of at least one point.
    pub(super) fn of(points: &[Measurement]) -> MeasuredRange {
        let longest = points.iter().flat_map(|point| &point.sequences).copied().max();
        let tokens = points.iter().map(Measurement::tokens).max();
        MeasuredRange { longest_tokens: longest.unwrap_or_default(), micro_batch_tokens: tokens.unwrap_or_default() }
    }

    /// The extrapolation factor of a micro-batch, by its longest sequence or by its tokens, relative to the
    /// measurements; 1 within them. Shorter is never further: below the shortest point `c` decides, which is in all
    /// points.
    pub fn beyond(self, longest: Tokens, micro_batch: Tokens) -> f64 {
        let length = longest.as_f64() / self.longest_tokens.as_f64();
        let tokens = micro_batch.as_f64() / self.micro_batch_tokens.as_f64();
        length.max(tokens).max(1.0)
    }
}
