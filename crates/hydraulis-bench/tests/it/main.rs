//! The comparison from outside: baselines under the core's checker, and the command.
#![expect(clippy::unwrap_used, reason = "the helpers of a test assert as the tests do")]

// The core's generators of profiles, clusters and batches.
#[path = "../../../hydraulis-core/tests/it/support/arbitrary.rs"]
#[expect(dead_code, reason = "not every generator is used here")]
mod arbitrary;
mod baselines;
mod command;
mod judging;
mod page;
mod paper;
mod tune;
mod tune_refusals;
