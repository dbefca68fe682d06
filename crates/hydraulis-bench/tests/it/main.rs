//! The comparison from outside: baselines under the core's checker, and the command.
#![expect(clippy::unwrap_used, reason = "the helpers of a test assert as the tests do")]

mod baselines;
mod command;
mod judging;
mod page;
