//! Offline: a short list of strategies for a whole run, chosen for a distribution of lengths.
//!
//! [`propose()`] finds strategies for sampled batches by search and chooses the few that together keep the expected
//! iteration shortest. [`paper_list`] is the Hydraulis paper's own method, a dynamic program over ranks and lengths,
//! for comparison.

mod choose;
mod paper;
mod proposal;

pub use paper::{PaperGrid, PaperStrategy, paper_list};
pub use proposal::{Progress, Proposal, Proposed, Request, propose};
