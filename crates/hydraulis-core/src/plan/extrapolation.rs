//! The extrapolation of a plan beyond its profile's measurements.

use std::fmt;

use crate::plan::{Plan, ReplicaPlan};
use crate::spec::Scheme;

/// The micro-batch of a plan that reaches furthest beyond the measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Extrapolation {
    /// Scheme of the micro-batch.
    pub scheme: Scheme,
    /// Extrapolation factor by its longest sequence or by its tokens, relative to the measurements; above 1.
    pub factor: f64,
}

impl fmt::Display for Extrapolation {
    /// The sentence with which every command reports extrapolation.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Extrapolation { scheme, factor } = self;
        write!(
            f,
            "A micro-batch of {scheme} is {factor:.1} times as long as what was measured of it: its time is an extrapolation."
        )
    }
}

impl Plan {
    /// The extrapolation of the plan; none if it stays within the measurements, or the profile does not state them.
    pub fn extrapolation(&self) -> Option<Extrapolation> {
        Extrapolation::of_replicas(&self.replicas)
    }
}

impl Extrapolation {
    /// The extrapolation of these replicas of one plan.
    pub(crate) fn of_replicas(replicas: &[ReplicaPlan]) -> Option<Extrapolation> {
        let of =
            |replica: &ReplicaPlan| Some(Extrapolation { scheme: replica.scheme, factor: replica.reliability?.factor });
        Extrapolation::furthest(replicas.iter().filter_map(of)).filter(|extrapolation| extrapolation.factor > 1.0)
    }

    /// The extrapolation of the greatest factor.
    pub(crate) fn furthest(extrapolations: impl Iterator<Item = Extrapolation>) -> Option<Extrapolation> {
        extrapolations.max_by(|one, other| one.factor.total_cmp(&other.factor))
    }
}
