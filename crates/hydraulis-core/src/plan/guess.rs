//! The extrapolation of a plan beyond its profile's measurements.

use std::fmt;

use crate::plan::{Plan, ReplicaPlan};
use crate::spec::Scheme;

/// The micro-batch of a plan that reaches furthest beyond the measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guess {
    /// Scheme of the micro-batch.
    pub scheme: Scheme,
    /// Extrapolation factor by its longest sequence or by its tokens, relative to the measurements; above 1.
    pub beyond: f64,
}

impl fmt::Display for Guess {
    /// The sentence with which every command reports extrapolation.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Guess { scheme, beyond } = self;
        write!(
            f,
            "A micro-batch of {scheme} is {beyond:.1} times as long as what was measured of it: its time is a guess."
        )
    }
}

impl Plan {
    /// The extrapolation of the plan; none if it stays within the measurements, or the profile does not state them.
    pub fn guess(&self) -> Option<Guess> {
        Guess::of_replicas(&self.replicas)
    }
}

impl Guess {
    /// The extrapolation of these replicas of one plan.
    pub(crate) fn of_replicas(replicas: &[ReplicaPlan]) -> Option<Guess> {
        let of = |replica: &ReplicaPlan| Some(Guess { scheme: replica.scheme, beyond: replica.trust?.beyond });
        Guess::furthest(replicas.iter().filter_map(of)).filter(|guess| guess.beyond > 1.0)
    }

    /// The extrapolation of the greatest factor.
    pub(crate) fn furthest(guesses: impl Iterator<Item = Guess>) -> Option<Guess> {
        guesses.max_by(|one, other| one.beyond.total_cmp(&other.beyond))
    }
}
