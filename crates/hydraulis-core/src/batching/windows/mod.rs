//! Offline packing of the sequences of a whole data set into windows of equal length.
//!
//! Best-fit decreasing puts each sequence, longest first, into the window with the least room that suffices, or into
//! a new window. It needs at most 11/9 of the fewest windows, plus one (Johnson 1973), and on long-tailed lengths
//! nearly always the fewest. Lengths are counted, not sorted, and the sequences of a window are found by length. So
//! `n` sequences in windows of `L` tokens take `O(n + L)` time, apart from the depth of a bit set (3 for 32,768). In
//! addition to the result, the packing takes 4 bytes per sequence, and 12 bytes per window or token of a window. Where
//! `n` is less than `L / 16`, ordered maps take the place of arrays over lengths: `O(n log n)` time, whatever `L` is.
//!
//! The lengths are read twice, in order and in pieces of any size, so that they may lie in a file:
//!
//! ```
//! use hydraulis_core::batching::windows::{LengthCounts, WindowPacking};
//!
//! let lengths = [700, 400, 300, 600];
//! let mut counts = LengthCounts::new(1_000)?;
//! counts.add(&lengths)?;
//! let mut packing = WindowPacking::new(counts)?;
//! while packing.advance(1_000_000) {}
//! let mut filling = packing.fill();
//! filling.add(&lengths)?;
//! let windows = filling.finish()?;
//! assert_eq!(windows.offsets, [0, 2, 4]);
//! assert_eq!(windows.sequences, [0, 2, 1, 3]);
//! # Ok::<(), hydraulis_core::Error>(())
//! ```

mod best_fit;
mod bit_set;
mod by_length;
mod counts;
mod filling;
mod rooms;

pub use best_fit::WindowPacking;
pub use counts::LengthCounts;
pub use filling::{WindowFilling, Windows};
