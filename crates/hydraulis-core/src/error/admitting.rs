//! Strategies as the message about a long sequence names them.

use std::fmt;

use crate::spec::Strategy;

/// The strategies that might admit a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admitting {
    /// This strategy.
    Strategy(Strategy),
    /// One of a list of so many.
    AnyOf(usize),
    /// Any at all.
    Any,
}

impl fmt::Display for Admitting {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Admitting::Strategy(strategy) => write!(f, "strategy {strategy}"),
            Admitting::AnyOf(count) => write!(f, "any of the {count} strategies"),
            Admitting::Any => f.write_str("any strategy"),
        }
    }
}
