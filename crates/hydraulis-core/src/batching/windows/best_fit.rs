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
        Ok(WindowPacking { rooms: Rooms::new(window), window_of, length: window + 1, left: 0, counts })
    }

    /// Packs about `sequences` more sequences; returns false once all are packed.
    pub fn advance(&mut self, sequences: usize) -> bool {
        let goal = self.window_of.len().saturating_add(sequences);
        while self.window_of.len() < goal {
            if self.left == 0 {
                if self.length <= 1 {
                    return false;
                }
                self.length -= 1;
                self.left = self.counts.counts[self.length] as usize;
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
