//! The counts of a data set's sequences by length.

use crate::batch::LONGEST_SEQUENCE;
use crate::batching::windows::by_length::ByLength;
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
    window: usize,
    /// The counts by length; the count of length 0 is 0.
    pub(super) counts: ByLength,
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
        let window = window.ok_or(error)?;
        Ok(LengthCounts { window, counts: ByLength::new(), sequences: 0, too_long: 0, longest: None })
    }

    /// Counts the next lengths in order; returns an error with the position of the first length below 1.
    pub fn add(&mut self, lengths: &[i64]) -> Result<()> {
        let sequences = check_sequences(self.sequences, lengths.len())?;
        self.counts.reserve(sequences, self.window);
        for &length in lengths {
            if length < 1 {
                let sequence = usize::try_from(self.sequences).unwrap_or(usize::MAX);
                return Err(Error::LengthOutOfRange { sequence, length, limit: self.limit() });
            }
            match usize::try_from(length).ok().filter(|&length| length <= self.window) {
                Some(length) => self.counts.count(length),
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
        self.window
    }

    /// The number of sequences.
    pub fn sequences(&self) -> u64 {
        self.sequences
    }

    /// The tokens of all sequences.
    pub fn tokens(&self) -> Tokens {
        self.counts.longest_first().map(|(length, count)| Tokens(length as u64 * u64::from(count))).sum()
    }

    /// A lower bound on the number of windows of every packing (Martello and Toth 1990, the bound `L2`).
    ///
    /// The bound considers each `k` up to half a window. A sequence longer than `window - k` shares its window with
    /// no sequence of at least `k` tokens. Every other sequence above half a window has its own window, whose
    /// remaining room fits some of the sequences from `k` to half a window. The bound of `k` differs from that of
    /// `k - 1` only after a length of `k - 1` or `window - k + 1`, so no other `k` is looked at.
    pub fn lower_bound(&self) -> u64 {
        let (window, half) = (self.window as u64, self.window / 2);
        let (long, mut short): (Vec<_>, Vec<_>) = self.counts.longest_first().partition(|&(length, _)| length > half);
        short.reverse();
        let (mut long, mut short) = (long.into_iter().peekable(), short.into_iter().peekable());
        let (mut alone, (mut paired, mut long_tokens)) = (0, total(long.clone()));
        let (_, mut short_tokens) = total(short.clone());
        let mut bound = 0;
        loop {
            let left = paired * window - long_tokens;
            bound = bound.max(alone + paired + short_tokens.saturating_sub(left).div_ceil(window));
            let next = [long.peek().map(|&(length, _)| self.window - length), short.peek().map(|&(length, _)| length)];
            let Some(k) = next.into_iter().flatten().min().filter(|&k| k < half) else { return bound };
            if let Some(at) = long.next_if(|&(length, _)| self.window - length == k) {
                let (count, tokens) = total([at]);
                (alone, paired, long_tokens) = (alone + count, paired - count, long_tokens - tokens);
            }
            short_tokens -= short.next_if(|&(length, _)| length == k).map_or(0, |at| total([at]).1);
        }
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

/// The number of these sequences and their tokens.
fn total(counts: impl IntoIterator<Item = (usize, u32)>) -> (u64, u64) {
    let counted = counts.into_iter().map(|(length, count)| (u64::from(count), length as u64));
    counted.fold((0, 0), |(n, tokens), (count, length)| (n + count, tokens + count * length))
}

/// The number of sequences after `more` of them; an error where they are too many.
fn check_sequences(counted: u64, more: usize) -> Result<u64> {
    let sequences = counted.saturating_add(u64::try_from(more).unwrap_or(u64::MAX));
    if sequences > MAX_SEQUENCES {
        return Err(WindowError::TooManySequences { sequences, limit: MAX_SEQUENCES }.into());
    }
    Ok(sequences)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// The bound of every `k`, written directly.
    fn direct_bound(window: u64, lengths: &[u64]) -> u64 {
        let of_one = |k: u64| {
            let number = |within: &dyn Fn(u64) -> bool| lengths.iter().filter(|&&length| within(length)).count() as u64;
            let tokens = |within: &dyn Fn(u64) -> bool| lengths.iter().filter(|&&length| within(length)).sum::<u64>();
            let alone = number(&|length| length > window - k);
            let is_paired = |length| length > window / 2 && length <= window - k;
            let left = number(&is_paired) * window - tokens(&is_paired);
            let short = tokens(&|length| length >= k && length <= window / 2);
            alone + number(&is_paired) + short.saturating_sub(left).div_ceil(window)
        };
        (0..=window / 2).map(of_one).max().unwrap()
    }

    proptest! {
        #[test]
        fn the_bound_is_that_of_every_k(
            (window, lengths) in (1..400_u64).prop_flat_map(|window| (Just(window), vec(1..=window, 0..40)))
        ) {
            let mut counts = LengthCounts::new(window.cast_signed()).unwrap();
            let signed: Vec<i64> = lengths.iter().map(|length| length.cast_signed()).collect();
            counts.add(&signed).unwrap();
            prop_assert_eq!(counts.lower_bound(), direct_bound(window, &lengths));
        }
    }

    #[test]
    fn places_fit_into_32_bits() {
        assert_eq!(check_sequences(MAX_SEQUENCES - 1, 1), Ok(MAX_SEQUENCES));
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
