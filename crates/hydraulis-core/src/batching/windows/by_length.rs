//! A number for each length of a window: in an ordered map for few sequences, otherwise in an array.
//!
//! An array takes time and memory by the tokens of a window. A caller that packs some tens of sequences into long
//! windows, again and again, would wait for the array alone.

use std::collections::BTreeMap;

/// The tokens of a window for each sequence, from which on the map is the faster form.
const TOKENS_PER_SEQUENCE: u64 = 16;

/// The numbers by length; those of other lengths are 0.
#[derive(Clone, Debug)]
pub(super) enum ByLength {
    Map(BTreeMap<usize, u32>),
    Array(Vec<u32>),
}

impl ByLength {
    /// No numbers.
    pub(super) fn new() -> ByLength {
        ByLength::Map(BTreeMap::new())
    }

    /// Prepares for this number of sequences, of up to `window` tokens.
    pub(super) fn reserve(&mut self, sequences: u64, window: usize) {
        if sequences.saturating_mul(TOKENS_PER_SEQUENCE) >= window as u64 {
            self.make_array(window);
        }
    }

    /// Changes to an array for lengths of up to `window` tokens.
    pub(super) fn make_array(&mut self, window: usize) {
        let ByLength::Map(map) = self else { return };
        let mut array = vec![0; window + 1];
        for (&length, &number) in &*map {
            array[length] = number;
        }
        *self = ByLength::Array(array);
    }

    /// Whether the numbers are in an array.
    pub(super) fn is_array(&self) -> bool {
        matches!(self, ByLength::Array(_))
    }

    /// Counts one more sequence of a length, which is in range.
    pub(super) fn count(&mut self, length: usize) {
        match self {
            ByLength::Map(map) => *map.entry(length).or_default() += 1,
            ByLength::Array(array) => array[length] += 1,
        }
    }

    /// The number of a length; `None` where the length never had one.
    pub(super) fn get_mut(&mut self, length: usize) -> Option<&mut u32> {
        match self {
            ByLength::Map(map) => map.get_mut(&length),
            ByLength::Array(array) => array.get_mut(length),
        }
    }

    /// The longest length below `limit` that has a number, and this number.
    pub(super) fn longest_below(&self, limit: usize) -> Option<(usize, u32)> {
        match self {
            ByLength::Map(map) => map.range(..limit).next_back().map(|(&length, &number)| (length, number)),
            ByLength::Array(array) => {
                let longest = array[..limit].iter().rposition(|&number| number > 0)?;
                Some((longest, array[longest]))
            }
        }
    }

    /// All lengths that have a number, longest first, with their numbers.
    pub(super) fn longest_first(&self) -> impl Iterator<Item = (usize, u32)> {
        let mut limit = match self {
            ByLength::Map(_) => usize::MAX,
            ByLength::Array(array) => array.len(),
        };
        std::iter::from_fn(move || {
            let (length, number) = self.longest_below(limit)?;
            limit = length;
            Some((length, number))
        })
    }

    /// For each length, the sum of the numbers of greater lengths.
    pub(super) fn sums_above(&self) -> ByLength {
        let mut sums = self.clone();
        let mut sum = 0;
        for (length, number) in self.longest_first() {
            if let Some(above) = sums.get_mut(length) {
                *above = sum;
            }
            sum += number;
        }
        sums
    }
}
