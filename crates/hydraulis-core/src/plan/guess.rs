//! Where a plan's times go beyond what its profile has measured.

use std::fmt;

use crate::plan::{Plan, ReplicaPlan};
use crate::spec::Scheme;

/// The micro-batch of a plan that reaches furthest beyond the measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guess {
    /// That it runs under.
    pub scheme: Scheme,
    /// How many times further than the measured ones it reaches, by its longest sequence or by its tokens; above 1.
    pub beyond: f64,
}

impl fmt::Display for Guess {
    /// The sentence with which every command says so.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Guess { scheme, beyond } = self;
        write!(
            f,
            "A micro-batch of {scheme} is {beyond:.1} times as long as what was measured of it: its time is a guess."
        )
    }
}

impl Plan {
    /// How far it goes beyond what was measured; none if it does not, or where the profile does not say.
    pub fn guess(&self) -> Option<Guess> {
        Guess::of_replicas(&self.replicas)
    }
}

impl Guess {
    /// How far these replicas of one plan go beyond what was measured.
    pub(crate) fn of_replicas(replicas: &[ReplicaPlan]) -> Option<Guess> {
        let of = |replica: &ReplicaPlan| Some(Guess { scheme: replica.scheme, beyond: replica.trust?.beyond });
        Guess::furthest(replicas.iter().filter_map(of)).filter(|guess| guess.beyond > 1.0)
    }

    /// The one that goes furthest.
    pub(crate) fn furthest(guesses: impl Iterator<Item = Guess>) -> Option<Guess> {
        guesses.max_by(|one, other| one.beyond.total_cmp(&other.beyond))
    }
}
