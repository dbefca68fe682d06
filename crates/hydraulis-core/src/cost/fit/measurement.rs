//! The measurements of a fit, their checks, and their range.

use serde::{Deserialize, Serialize};

use crate::batch::LONGEST_SEQUENCE;
use crate::error::{Error, FitError, Result};
use crate::spec::Scheme;
use crate::units::{Millis, Tokens};

/// Fewer points leave none to judge three coefficients by.
pub(super) const LEAST_POINTS: usize = 4;

/// Times of a fit lie within a few orders of magnitude; beyond these limits its sums would overflow or vanish.
const TIMES: std::ops::RangeInclusive<f64> = 1e-9..=1e12;

/// One timed micro-batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// Lengths of its sequences.
    pub sequences: Vec<Tokens>,
    /// Time of one stage, forward and backward.
    pub ms: Millis,
}

impl Measurement {
    /// Sum of squares, sum, one: the factors of `a`, `b` and `c`.
    pub(super) fn features(&self) -> [f64; 3] {
        features(&self.sequences)
    }

    /// Tokens of the micro-batch.
    pub(super) fn tokens(&self) -> Tokens {
        self.sequences.iter().copied().sum()
    }
}

/// Sum of squares, sum, one: the factors of `a`, `b` and `c`.
pub(super) fn features(sequences: &[Tokens]) -> [f64; 3] {
    let squares = sequences.iter().map(|tokens| tokens.as_f64() * tokens.as_f64()).sum();
    [squares, sequences.iter().map(|tokens| tokens.as_f64()).sum(), 1.0]
}

/// Refuses points that no fit could use, and lengths above the limit of a batch.
pub(super) fn check(points: &[Measurement], scheme: Option<Scheme>) -> Result<()> {
    let refuse = |why: String| Err(FitError::Unusable { of: of(scheme), why }.into());
    if let Some(point) = points.iter().find(|point| !TIMES.contains(&point.ms.0)) {
        let (least, most) = (TIMES.start(), TIMES.end());
        return refuse(format!("a measured time is {} ms, it must be from {least:e} to {most:e}", point.ms.0));
    }
    if points.iter().any(|point| point.sequences.is_empty() || point.sequences.contains(&Tokens(0))) {
        return refuse("a measured micro-batch has no sequence, or one without tokens".into());
    }
    let lengths = points.iter().flat_map(|point| point.sequences.iter().enumerate());
    for (sequence, tokens) in lengths {
        let length = i64::try_from(tokens.0).unwrap_or(i64::MAX);
        if length > LONGEST_SEQUENCE {
            return Err(Error::LengthOutOfRange { sequence, length, limit: LONGEST_SEQUENCE });
        }
    }
    if points.len() < LEAST_POINTS {
        return refuse(format!("there are {} timed micro-batches, at least {LEAST_POINTS} are needed", points.len()));
    }
    Ok(())
}

/// The error for points among which some coefficients cannot be told apart.
pub(super) fn unidentified(points: &[Measurement], scheme: Option<Scheme>) -> FitError {
    let mut totals: Vec<Tokens> = points.iter().map(Measurement::tokens).collect();
    totals.sort_unstable();
    totals.dedup();
    FitError::Unidentified { of: of(scheme), points: points.len(), totals: totals.len() }
}

/// The name of a fitted scheme, for messages.
pub(super) fn of(scheme: Option<Scheme>) -> String {
    scheme.map(|scheme| format!(" of {scheme}")).unwrap_or_default()
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_above_the_limit_of_a_batch_is_refused() {
        let of =
            |lengths: &[u64]| Measurement { sequences: lengths.iter().copied().map(Tokens).collect(), ms: Millis(1.0) };
        let mut points = vec![of(&[1, 2]); LEAST_POINTS];
        assert_eq!(check(&points, None), Ok(()));
        points.push(of(&[7, u64::MAX]));
        let error = check(&points, None).unwrap_err();
        assert!(matches!(error, Error::LengthOutOfRange { sequence: 1, length: i64::MAX, .. }), "{error}");
    }
}
