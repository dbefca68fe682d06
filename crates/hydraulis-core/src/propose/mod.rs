//! A short list of strategies for a whole run, chosen offline for a distribution of lengths.
//!
//! [`propose()`] searches strategies for the given batches, and for more batches drawn from their sequences. It
//! chooses the few strategies that keep the mean iteration shortest when each batch runs under the fastest of them:
//! greedily, then by exchanges. One of them admits the longest sequence, so every batch of a run has a strategy.

mod choose;
mod proposal;

pub use proposal::{Progress, Proposal, Proposed, Request, propose};
