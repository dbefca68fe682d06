//! A short list of strategies for a whole run, chosen offline for a distribution of lengths.
//!
//! [`propose()`] searches strategies for the given batches, and for more batches drawn from their sequences. It chooses
//! the few whose fastest keeps the mean iteration shortest: greedily, then by exchanges. One of them admits the longest
//! sequence, so every batch of a run has a strategy.

mod choose;
mod proposal;

pub use proposal::{Progress, Proposal, Proposed, Request, propose};
