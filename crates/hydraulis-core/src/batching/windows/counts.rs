//! The counts of a data set's sequences by length.

use crate::batch::LONGEST_SEQUENCE;
use crate::error::{Error, Result, WindowError};
use crate::units::Tokens;

/// The longest window. It equals the longest sequence of a batch, far beyond any model's context.
const MAX_WINDOW: i64 = LONGEST_SEQUENCE;
/// The most sequences. Sequence positions fit into 32 bits, which halves the memory; the largest data sets have a
/// tenth of this number.
const MAX_SEQUENCES: u64 = u32::MAX as u64;

/// The number of sequences of each length.
#[derive(Debug)]
pub struct LengthCounts {
    /// The counts by length; the count of length 0 is 0.
    pub(super) counts: Vec<u32>,
    sequences: u64,
    too_long: u64,
    /// The position and length of the longest sequence that exceeds the window; the first among equals.
    longest: Option<(u64, i64)>,
}

impl LengthCounts {
    /// Empty counts for windows of `window_tokens` tokens.
    pub fn new(window_tokens: i64) -> Result<LengthCounts> {
        let window = usize::try_from(window_tokens).ok().filter(|_| (1..=MAX_WINDOW).contains(&window_tokens));
        let error = Error::TokenLimit { field: "window_tokens", value: window_tokens, limit: MAX_WINDOW };
        Ok(LengthCounts { counts: vec![0; window.ok_or(error)? + 1], sequences: 0, too_long: 0, longest: None })
    }

    /// Counts the next lengths in order; returns an error with the position of the first length below 1.
    pub fn add(&mut self, lengths: &[i64]) -> Result<()> {
        check_sequences(self.sequences, lengths.len())?;
        for &length in lengths {
            if length < 1 {
                let sequence = usize::try_from(self.sequences).unwrap_or(usize::MAX);
                return Err(Error::LengthOutOfRange { sequence, length, limit: self.limit() });
            }
            match usize::try_from(length).ok().and_then(|length| self.counts.get_mut(length)) {
                Some(count) => *count += 1,
                None => self.note_too_long(length),
            }
            self.sequences += 1;
        }
        Ok(())
    }

    /// Returns one error for all sequences longer than the window, once every length has been read.
    pub(super) fn check_fit(&self) -> Result<()> {
        let Some((sequence, length)) = self.longest else {
            return Ok(());
        };
        let (too_long, sequences) = (self.too_long, self.sequences);
        Err(WindowError::LongerThanWindow { too_long, sequences, sequence, length, limit: self.limit() }.into())
    }

    /// The tokens of a window.
    pub fn window(&self) -> usize {
        self.counts.len() - 1
    }

    /// The number of sequences.
    pub fn sequences(&self) -> u64 {
        self.sequences
    }

    /// The tokens of all sequences.
    pub fn tokens(&self) -> Tokens {
        (0..).zip(&self.counts).map(|(length, &count)| Tokens(length * u64::from(count))).sum()
    }

    /// A lower bound on the number of windows of every packing (Martello and Toth 1990, the bound `L2`).
    ///
    /// The bound considers each `k` up to half a window. A sequence longer than `window - k` shares its window with
    /// no sequence of at least `k` tokens. Every other sequence above half a window has its own window, whose
    /// remaining room fits some of the sequences from `k` to half a window.
    pub fn lower_bound(&self) -> u64 {
        let window = self.window();
        let half = window / 2;
        let total = |range: std::ops::RangeInclusive<usize>| {
            let counted = range.map(|length| (u64::from(self.counts[length]), length as u64));
            counted.fold((0, 0), |(n, tokens), (count, length)| (n + count, tokens + count * length))
        };
        let mut alone = 0;
        let (mut long, mut long_tokens) = total(half + 1..=window);
        let (_, mut short_tokens) = total(1..=half);
        let mut bound = 0;
        for k in 0..=half {
            let left = long * window as u64 - long_tokens;
            let more = short_tokens.saturating_sub(left).div_ceil(window as u64);
            bound = bound.max(alone + long + more);
            let left = u64::from(self.counts[window - k]);
            if window - k > half {
                (alone, long, long_tokens) = (alone + left, long - left, long_tokens - left * (window - k) as u64);
            }
            short_tokens -= u64::from(self.counts[k]) * k as u64;
        }
        bound
    }

    fn note_too_long(&mut self, length: i64) {
        self.too_long += 1;
        if self.longest.is_none_or(|(_, longest)| length > longest) {
            self.longest = Some((self.sequences, length));
        }
    }

    fn limit(&self) -> i64 {
        i64::try_from(self.window()).unwrap_or(i64::MAX)
    }
}

fn check_sequences(counted: u64, more: usize) -> Result<()> {
    let sequences = counted.saturating_add(u64::try_from(more).unwrap_or(u64::MAX));
    if sequences > MAX_SEQUENCES {
        return Err(WindowError::TooManySequences { sequences, limit: MAX_SEQUENCES }.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_fit_into_32_bits() {
        assert_eq!(check_sequences(MAX_SEQUENCES - 1, 1), Ok(()));
        assert_eq!(check_sequences(MAX_SEQUENCES, 1).unwrap_err().code(), "lengths_invalid");
    }

    #[test]
    fn the_bound_counts_sequences_that_cannot_share_a_window() {
        let bound = |window, lengths: &[i64]| {
            let mut counts = LengthCounts::new(window).unwrap();
            counts.add(lengths).unwrap();
            counts.lower_bound()
        };
        assert_eq!(bound(10, &[]), 0);
        assert_eq!(bound(10, &[4, 4, 4]), 2);
        assert_eq!(bound(10, &[6, 6, 6]), 3);
        // 20 tokens fill two windows, but a window with an 8 has no room for a 4.
        assert_eq!(bound(10, &[8, 8, 4]), 3);
        assert_eq!(bound(1, &[1, 1]), 2);
    }
}
