//! A proven lower bound of a plan.

use serde::{Deserialize, Serialize};

use crate::units::Millis;

/// A proven lower bound on the iteration time, and what sets it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    /// No plan is shorter.
    pub ms: Millis,
    /// Which argument proves it.
    pub kind: BoundKind,
}

/// Which argument proves a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BoundKind {
    /// This sequence alone takes that long wherever it is admitted.
    Sequence(usize),
    /// The work of all sequences, shared out perfectly, takes that long.
    Work,
}
