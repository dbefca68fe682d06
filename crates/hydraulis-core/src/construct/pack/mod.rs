//! A replica's sequences become ordered micro-batches.
//!
//! No micro-batch exceeds the scheme's cap; by the exact memory rule, no window of consecutive ones exceeds as many caps,
//! and a long one stands between light or empty ones. Without a pipeline the time is the sum of the sequences and `c`
//! for each micro-batch, so the fewest micro-batches win, in whatever order: the first and the last of them hide
//! transfers. With one, fewer but longer micro-batches fill the pipeline worse: several counts are tried, each balanced
//! by time and simulated, and the best is kept.

mod bins;
mod order;
mod packer;

pub use order::hide_at_both_ends;
pub use packer::{Packer, Packing};
