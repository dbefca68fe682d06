//! Replicas in the order of their times.

use std::collections::BTreeSet;

use crate::units::Millis;

/// Replicas by time; among equals the lower index comes first.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranking {
    by_time: BTreeSet<(Millis, usize)>,
}

impl Ranking {
    /// A ranking of replicas with these times.
    pub(super) fn new(times: impl Iterator<Item = (usize, Millis)>) -> Ranking {
        Ranking { by_time: times.map(|(replica, time)| (time, replica)).collect() }
    }

    /// The replica that ends last; the lower index among equals.
    pub(super) fn slowest(&self) -> Option<usize> {
        let (time, _) = self.by_time.last()?;
        self.by_time.range((*time, 0)..).next().map(|(_, replica)| *replica)
    }

    /// Replicas, the earliest to end first.
    pub(super) fn earliest(&self) -> impl Iterator<Item = usize> + '_ {
        self.by_time.iter().map(|(_, replica)| *replica)
    }

    /// Updates a replica's time.
    pub(super) fn change(&mut self, replica: usize, before: Millis, after: Millis) {
        self.by_time.remove(&(before, replica));
        self.by_time.insert((after, replica));
    }
}
