//! Hostile inputs for the core: what a fuzzer's bytes become, and what must hold for them.
//!
//! | bytes become | what must hold | module |
//! |---|---|---|
//! | a profile, a cluster, strategies, a batch, a memory rule, a link, a run's limit of strategies | a plan that keeps its promises, or an error by its code | [`planner`] |
//! | the text of a profile or a plan, with transfers or without | it is refused by its code, or reads back as it was written | [`documents`] |
//!
//! What does not hold panics, which is how a fuzzer and a test both learn of it. The targets of `make fuzz` hand
//! libFuzzer's bytes to these two modules; the tests hand them random ones, so that what the targets run is built
//! and run by every `make test`.

#![forbid(unsafe_code)]

mod input;
mod link;

pub mod documents;

pub mod planner;
