//! The core from outside: its promises, on generated inputs and against slow, direct implementations.
//!
//! `PROPTEST_CASES` sets the number of generated cases of every property; the default is few cases, so that the whole
//! binary runs in seconds.
#![expect(clippy::unwrap_used, reason = "the helpers of a test assert as the tests do")]

mod batching;
mod check;
mod cost;
mod golden;
mod layers;
mod layout;
mod lookahead;
mod pipeline;
mod plan;
mod propose;
mod search;
mod simulate;
mod support;
