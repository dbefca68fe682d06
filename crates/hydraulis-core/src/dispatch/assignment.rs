//! Sequences on replicas, with each replica's packed time.

use crate::pack::Packer;
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

    /// The sequences of each replica, longest first.
    pub fn sequences(&self) -> &[Vec<usize>] {
        &self.sequences
    }

    /// The time of the slowest replica.
    pub fn iteration_ms(&self) -> Millis {
        self.times.iter().copied().max().unwrap_or_default()
    }

    /// The packer of a replica.
    pub fn packer(&mut self, replica: usize) -> &mut Packer<'a> {
        &mut self.packers[self.scheme_of[replica]]
    }

    pub(super) fn packer_of(&self, replica: usize) -> &Packer<'a> {
        &self.packers[self.scheme_of[replica]]
    }
}
