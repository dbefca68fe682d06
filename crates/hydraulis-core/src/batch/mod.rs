//! The lengths of one global batch and of a whole data set.

mod histogram;
mod sequences;

pub use histogram::LengthHistogram;
pub use sequences::{Batch, LONGEST_SEQUENCE};
