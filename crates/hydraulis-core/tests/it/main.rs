//! The core from outside: what it promises, on generated inputs and against slow, plain twins.
//!
//! `PROPTEST_CASES` sets the number of generated cases of every property; without it each takes few, so that
//! the whole binary runs in seconds.
#![expect(clippy::unwrap_used, reason = "the helpers of a test assert as the tests do")]

mod analytic;
mod arbitrary;
mod balance;
mod bound;
mod checker;
mod documents;
mod fit;
mod golden;
mod hostile;
mod layers;
mod limited;
mod linked;
mod lookahead;
mod movement;
mod oracle;
mod paper;
mod planner;
mod presets;
mod propose;
mod schedule;
mod search;
mod simulation;
mod transfers;
mod windows;
mod world;
