//! Hostile inputs for the core: the conversion of a fuzzer's bytes, and the promises for any input.
//!
//! | input from the bytes | promise | module |
//! |---|---|---|
//! | a profile, a cluster, strategies, a batch, a memory rule, a link, a run's limit of strategies | a plan that keeps its promises, or an error by its code | [`planner`] |
//! | the text of a profile or a plan, with transfers or without | the text is refused by a code, or its value reads back unchanged | [`documents`] |
//!
//! A broken promise panics, which both a fuzzer and a test report. The targets of `make fuzz` pass libFuzzer's bytes to
//! these two modules; the tests pass random bytes, so that every `make test` builds and runs the code of the targets.

#![forbid(unsafe_code)]

mod input;
mod link;

pub mod documents;

pub mod planner;
