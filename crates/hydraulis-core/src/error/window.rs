//! Errors of offline packing.

use thiserror::Error;

use crate::error::Grouped;

/// An error of offline packing.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WindowError {
    /// Sequences are longer than a context window.
    #[error(
        "{too_long} of {sequences} sequences are longer than a window of {limit} tokens; the longest is sequence {sequence}, of {length}: cut them, leave them out, or use a longer window",
        too_long = Grouped(.too_long),
        sequences = Grouped(.sequences),
        limit = Grouped(.limit),
        length = Grouped(.length)
    )]
    LongerThanWindow {
        /// Number of sequences above the limit.
        too_long: u64,
        /// Number of all sequences.
        sequences: u64,
        /// Position of the longest sequence in the data set.
        sequence: u64,
        /// Length of the longest sequence.
        length: i64,
        /// Tokens of a window.
        limit: i64,
    },
    /// The data set has too many sequences.
    #[error(
        "the data set has {sequences} sequences: the limit is {limit}; pack it in parts",
        sequences = Grouped(.sequences),
        limit = Grouped(.limit)
    )]
    TooManySequences {
        /// Sequences counted so far.
        sequences: u64,
        /// Largest number of sequences.
        limit: u64,
    },
    /// The lengths differ between two readings.
    #[error(
        "sequence {sequence} differs in length from the first reading, or the number of sequences does: keep the lengths unchanged while they are packed"
    )]
    LengthsChanged {
        /// Position in the data set.
        sequence: usize,
    },
}
