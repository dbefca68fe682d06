//! Stage 1: the lengths of one global batch.

mod batch;

pub use batch::Batch;
