//! The batches of a run: drawn from a distribution or a kind, or read from a file. Cost profiles are read here too.
//!
//! Sequences are added to a batch until its tokens reach the budget, and the last one stays whole. A batch therefore
//! has at least the budget, and less than the budget plus one sequence.

mod draw;
mod files;
mod kind;
mod source;

pub use draw::{Lognormal, draw};
pub use files::{cut_into_batches, read_batches, read_lengths, read_profile};
pub use kind::Kind;
pub use source::Lengths;
