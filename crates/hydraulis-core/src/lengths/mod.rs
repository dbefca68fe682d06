//! Stage 1: the lengths of one global batch, and of a whole data set.

mod batch;
mod histogram;

pub use batch::{Batch, LONGEST_SEQUENCE};
pub use histogram::LengthHistogram;
