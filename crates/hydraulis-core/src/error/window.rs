//! What offline packing refuses.

use thiserror::Error;

use crate::error::Grouped;

/// An error of offline packing.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WindowError {
    /// Sequences that no window holds.
    #[error(
        "{too_long} of {sequences} sequences are longer than a window of {limit} tokens; the longest is sequence {sequence}, of {length}: cut them, leave them out, or take a longer window",
        too_long = Grouped(.too_long),
        sequences = Grouped(.sequences),
        limit = Grouped(.limit),
        length = Grouped(.length)
    )]
    LongerThanWindow {
        /// How many there are.
        too_long: u64,
        /// Of so many.
        sequences: u64,
        /// Position of the longest in the data set.
        sequence: u64,
        /// Its tokens.
        length: i64,
        /// Tokens of a window.
        limit: i64,
    },
    /// A data set with more sequences than have a place.
    #[error(
        "the data set has {sequences} sequences: the limit is {limit}; pack it in parts",
        sequences = Grouped(.sequences),
        limit = Grouped(.limit)
    )]
    TooManySequences {
        /// Sequences so far.
        sequences: u64,
        /// The greatest number.
        limit: u64,
    },
    /// Lengths that differ between two readings.
    #[error(
        "sequence {sequence} has another length than when it was first read, or there are more or fewer sequences: let nothing write to the lengths while they are packed"
    )]
    LengthsChanged {
        /// Position in the data set.
        sequence: usize,
    },
}
