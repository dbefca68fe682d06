//! A proven lower bound of a plan.

use serde::{Deserialize, Serialize};

use crate::units::Millis;

/// A proven lower bound on the iteration time, and its argument.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    /// No plan is shorter.
    pub ms: Millis,
    /// Argument of the proof.
    pub kind: BoundKind,
}

/// The argument of a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BoundKind {
    /// This sequence alone takes that long on every replica that admits it.
    Sequence(usize),
    /// The work of all sequences, divided perfectly, takes that long.
    Work,
}
