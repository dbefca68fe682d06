//! Sequences on replicas, with each replica's packed time.

use std::ops::Range;

use crate::capacity::Capacities;
use crate::error::Result;
use crate::lengths::Batch;
use crate::pack::Packer;
use crate::spec::{Scheme, Strategy};
use crate::units::Millis;

/// The sequences of each replica, longest first, and the time they take there.
///
/// Replicas of one scheme share a packer: `scheme_of` says which.
#[derive(Clone, Debug)]
pub struct Assignment<'a> {
    pub(super) packers: Vec<Packer<'a>>,
    pub(super) scheme_of: Vec<usize>,
    pub(super) sequences: Vec<Vec<usize>>,
    pub(super) times: Vec<Millis>,
}

impl<'a> Assignment<'a> {
    /// Takes the time of each replica's sequences.
    pub(super) fn new(packers: Vec<Packer<'a>>, scheme_of: Vec<usize>, sequences: Vec<Vec<usize>>) -> Assignment<'a> {
        let mut assignment = Assignment { packers, scheme_of, sequences, times: Vec::new() };
        assignment.times = (0..assignment.sequences.len())
            .map(|replica| assignment.packers[assignment.scheme_of[replica]].time(&assignment.sequences[replica]))
            .collect();
        assignment
    }

    /// These sequences, longest first, of each replica of a strategy, which admits them.
    pub fn of(
        batch: &'a Batch,
        strategy: &Strategy,
        capacities: &'a Capacities,
        sequences: Vec<Vec<usize>>,
    ) -> Result<Assignment<'a>> {
        let (packers, scheme_of) = packers(batch, strategy, capacities)?;
        Ok(Assignment::new(packers, scheme_of, sequences))
    }

    /// The same sequences, on replicas of which those of a scheme end so much later than their packings.
    #[must_use]
    pub fn delayed(self, delay: impl Fn(Scheme) -> Millis) -> Assignment<'a> {
        let later = |packer: Packer<'a>| {
            let delay = delay(packer.cost().scheme());
            packer.delayed(delay)
        };
        Assignment::new(self.packers.into_iter().map(later).collect(), self.scheme_of, self.sequences)
    }

    /// The sequences of each replica, longest first.
    pub fn sequences(&self) -> &[Vec<usize>] {
        &self.sequences
    }

    /// The time of each replica.
    pub fn ends(&self) -> &[Millis] {
        &self.times
    }

    /// The time of the slowest replica.
    pub fn iteration_ms(&self) -> Millis {
        self.times.iter().copied().max().unwrap_or_default()
    }

    /// The packer of a replica.
    pub fn packer(&mut self, replica: usize) -> &mut Packer<'a> {
        &mut self.packers[self.scheme_of[replica]]
    }

    /// The replicas of one scheme.
    pub(super) fn replicas(&self, scheme: usize) -> Range<usize> {
        replicas(&self.scheme_of, scheme)
    }

    pub(super) fn packer_of(&self, replica: usize) -> &Packer<'a> {
        &self.packers[self.scheme_of[replica]]
    }
}

/// A packer for each distinct scheme, and which of them each replica uses.
pub(super) fn packers<'a>(
    batch: &'a Batch,
    strategy: &Strategy,
    capacities: &'a Capacities,
) -> Result<(Vec<Packer<'a>>, Vec<usize>)> {
    let groups = strategy.groups();
    let packers = groups.iter().map(|(scheme, _)| Ok(Packer::new(capacities.scheme(*scheme)?, batch)));
    let replicas = groups.iter().enumerate();
    let scheme_of = replicas.flat_map(|(scheme, (_, replicas))| std::iter::repeat_n(scheme, *replicas)).collect();
    Ok((packers.collect::<Result<_>>()?, scheme_of))
}

/// The replicas of one scheme, of which those of each stand together.
pub(super) fn replicas(scheme_of: &[usize], scheme: usize) -> Range<usize> {
    let first = scheme_of.partition_point(|&other| other < scheme);
    first..scheme_of.partition_point(|&other| other <= scheme)
}
