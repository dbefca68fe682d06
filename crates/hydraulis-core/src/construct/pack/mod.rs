//! Packs a replica's sequences into ordered micro-batches.
//!
//! No micro-batch exceeds the class's token cap. With the in-flight limit, consecutive micro-batches together stay
//! within the limit's tokens, and a long micro-batch stands between light or empty ones. Without a pipeline the time is
//! the sum over the sequences and `c` for each micro-batch, so the fewest micro-batches win, in any order, evenly filled
//! where some would take the least time `d`; the first and the last of them overlap transfers. With a pipeline, fewer but
//! longer micro-batches fill it worse: several counts are balanced by time and simulated, and the best is kept. Where one
//! sequence takes longer than the best micro-batches, few long ones around it are tried too (`around`).

mod around;
mod bins;
mod order;
mod overlap;
mod packer;

pub use order::longest_at_both_ends;
pub use packer::{Packer, Packing};
