//! The sequences of each window.

use crate::batching::windows::by_length::ByLength;
use crate::batching::windows::counts::LengthCounts;
use crate::error::{Result, WindowError};
use crate::units::Tokens;

/// Gives each sequence its place in a window, while the lengths are read for the second time.
#[derive(Debug)]
pub struct WindowFilling {
    /// The result of `finish`, with its `sequences` partly filled.
    windows: Windows,
    /// For each length, the number of its sequences without a place.
    left: ByLength,
    window_of: Vec<u32>,
    /// For each length, the position of its next sequence in `window_of`.
    next: ByLength,
    /// The place in `sequences` of each window's next sequence.
    place: Vec<u32>,
    read: usize,
}

/// The packed windows: the ids of each window in file order, and the start of each window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    /// The start of each window in `sequences`, followed by the end of the last window.
    pub offsets: Vec<i64>,
    /// The ids of all sequences, window by window.
    pub sequences: Vec<i64>,
    /// The tokens of all sequences.
    pub tokens: Tokens,
    /// A lower bound on the number of windows of every packing.
    pub lower_bound: u64,
}

impl WindowFilling {
    pub(super) fn new(counts: LengthCounts, window_of: Vec<u32>, windows: usize) -> WindowFilling {
        let mut sizes = vec![0; windows];
        for &window in &window_of {
            sizes[window as usize] += 1;
        }
        WindowFilling {
            windows: Windows {
                offsets: Vec::new(),
                sequences: vec![0; window_of.len()],
                tokens: counts.tokens(),
                lower_bound: counts.lower_bound(),
            },
            next: counts.counts.sums_above(),
            left: counts.counts,
            window_of,
            place: starts(&sizes),
            read: 0,
        }
    }

    /// Places the next sequences in order; their lengths must equal the counted lengths.
    pub fn add(&mut self, lengths: &[i64]) -> Result<()> {
        for &length in lengths {
            let window = self.window_of(length).ok_or(WindowError::LengthsChanged { sequence: self.read })?;
            let place = &mut self.place[window];
            self.windows.sequences[*place as usize] = i64::try_from(self.read).unwrap_or(i64::MAX);
            *place += 1;
            self.read += 1;
        }
        Ok(())
    }

    /// The window of the next sequence of this length; `None` where all counted sequences of the length have a
    /// window.
    fn window_of(&mut self, length: i64) -> Option<usize> {
        let length = usize::try_from(length).ok().filter(|&length| length > 0)?;
        let left = self.left.get_mut(length).filter(|left| **left > 0)?;
        *left -= 1;
        let next = self.next.get_mut(length)?;
        let window = self.window_of[*next as usize];
        *next += 1;
        Some(window as usize)
    }

    /// The packed windows, once all sequences have been read; an error where fewer sequences were read than counted.
    pub fn finish(self) -> Result<Windows> {
        if self.read < self.window_of.len() {
            return Err(WindowError::LengthsChanged { sequence: self.read }.into());
        }
        let ends = self.place.iter().map(|&end| i64::from(end));
        Ok(Windows { offsets: std::iter::once(0).chain(ends).collect(), ..self.windows })
    }
}

/// The start of each of several lists that stand one after another.
fn starts(sizes: &[u32]) -> Vec<u32> {
    let mut end = 0;
    let start = |&size: &u32| {
        let start = end;
        end += size;
        start
    };
    sizes.iter().map(start).collect()
}
