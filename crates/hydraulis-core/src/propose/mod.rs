//! A short list of strategies for a whole run, chosen offline for a distribution of lengths.
//!
//! [`propose()`] searches strategies for the given batches, and for more batches drawn from their sequences. It chooses
//! the few whose fastest keeps the mean iteration shortest: greedily, then by exchanges. One of them admits the longest
//! sequence, so every batch of a run has a strategy. [`paper_list`] is the Hydraulis paper's own method, a dynamic
//! program over ranks and lengths, for comparison.

mod choose;
mod paper;
mod proposal;

pub use paper::{PaperGrid, PaperStrategy, paper_list};
pub use proposal::{Progress, Proposal, Proposed, Request, propose};
