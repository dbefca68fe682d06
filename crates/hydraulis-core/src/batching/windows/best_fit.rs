//! The choice of a window for each sequence, by length alone.

use crate::batching::windows::counts::LengthCounts;
use crate::batching::windows::filling::WindowFilling;
use crate::batching::windows::rooms::Rooms;
use crate::error::{Error, Result};

/// Best-fit decreasing over counted lengths, in pieces.
///
/// Sequences of one length are alike. A window that has just taken one and still has room for the next has the least
/// room that suffices, so a window takes as many sequences of the length at once as fit.
#[derive(Debug)]
pub struct WindowPacking {
    counts: LengthCounts,
    rooms: Rooms,
    /// The window of each sequence, from the longest sequence to the shortest.
    window_of: Vec<u32>,
    /// The current length; `left` counts its sequences without a window.
    length: usize,
    left: usize,
}

impl WindowPacking {
    /// A packing that starts with the longest sequence. There must be at least one sequence, and a window must have
    /// room for the longest.
    pub fn new(counts: LengthCounts) -> Result<WindowPacking> {
        counts.check_fit()?;
        let (window, sequences) = (counts.window(), counts.sequences());
        if sequences == 0 {
            return Err(Error::BatchEmpty);
        }
        let window_of = Vec::with_capacity(usize::try_from(sequences).unwrap_or(usize::MAX));
        let rooms = if counts.counts.is_array() { Rooms::many(window) } else { Rooms::few() };
        Ok(WindowPacking { rooms, window_of, length: window + 1, left: 0, counts })
    }

    /// Packs about `sequences` more sequences; returns false once all are packed.
    pub fn advance(&mut self, sequences: usize) -> bool {
        let goal = self.window_of.len().saturating_add(sequences);
        while self.window_of.len() < goal {
            if self.left == 0 {
                let Some((length, count)) = self.counts.counts.longest_below(self.length) else { return false };
                (self.length, self.left) = (length, count as usize);
            } else {
                self.fill_one();
            }
        }
        true
    }

    /// Puts as many sequences of the current length as fit into the best window.
    fn fill_one(&mut self) {
        let new = (self.rooms.windows(), self.counts.window());
        let (window, room) = self.rooms.take(self.length).unwrap_or(new);
        let together = self.left.min(room / self.length);
        self.window_of.extend(std::iter::repeat_n(window, together));
        self.rooms.put(window, room - together * self.length);
        self.left -= together;
    }

    /// The number of sequences that have a window.
    pub fn packed(&self) -> usize {
        self.window_of.len()
    }

    /// Packs the remaining sequences, then starts to fill the windows.
    pub fn fill(mut self) -> WindowFilling {
        while self.advance(usize::MAX) {}
        WindowFilling::new(self.counts, self.window_of, self.rooms.windows() as usize)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::batching::windows::filling::Windows;

    fn packed(lengths: &[i64], window: i64, in_array: bool) -> (bool, Windows) {
        let mut counts = LengthCounts::new(window).unwrap();
        counts.add(lengths).unwrap();
        if in_array {
            counts.counts.make_array(counts.window());
        }
        let is_array = counts.counts.is_array();
        let mut filling = WindowPacking::new(counts).unwrap().fill();
        filling.add(lengths).unwrap();
        (is_array, filling.finish().unwrap())
    }

    proptest! {
        #[test]
        fn maps_and_arrays_give_the_same_windows(
            (window, lengths) in (1_700..6_000_i64)
                .prop_flat_map(|window| (Just(window), vec(prop_oneof![1..=window, 1..=40_i64, Just(7)], 1..100)))
        ) {
            let ((few_in_array, few), (many_in_array, many)) =
                (packed(&lengths, window, false), packed(&lengths, window, true));
            prop_assert!(!few_in_array && many_in_array);
            prop_assert_eq!(few, many);
        }
    }
}
