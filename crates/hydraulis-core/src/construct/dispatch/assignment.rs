//! Assignment of sequences to replicas, with each replica's packed time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::sync::Arc;

use crate::batch::Batch;
use crate::capacity::{Capacities, ClassCapacity};
use crate::construct::pack::{Packer, Packing};
use crate::cost::ReplicaClass;
use crate::error::Result;
use crate::spec::{PackingBudget, Strategy};
use crate::timing::Exposure;
use crate::units::Millis;

/// By how much a replica ends later than its packing, because it waits for transfers.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    /// By this time in any packing: a pipeline.
    pub delay: Millis,
    /// By as much as its packing does not overlap; none for a pipeline.
    pub exposure: Option<Arc<Exposure>>,
}

/// The sequences of each replica, longest first, and their packed time.
///
/// Replicas of one class share a packer; `class_of` is its index.
#[derive(Clone, Debug)]
pub struct Assignment<'a> {
    pub(super) packers: Vec<Packer<'a>>,
    pub(super) class_of: Vec<usize>,
    pub(super) sequences: Vec<Vec<usize>>,
    pub(super) times: Vec<Millis>,
}

impl<'a> Assignment<'a> {
    /// Packs each replica's sequences for its time.
    pub(super) fn new(packers: Vec<Packer<'a>>, class_of: Vec<usize>, sequences: Vec<Vec<usize>>) -> Assignment<'a> {
        let mut assignment = Assignment { packers, class_of, sequences, times: Vec::new() };
        assignment.times = (0..assignment.sequences.len())
            .map(|replica| assignment.packers[assignment.class_of[replica]].time(&assignment.sequences[replica]))
            .collect();
        assignment
    }

    /// An assignment of these sequences, longest first, to the replicas of a strategy that admits them.
    pub fn of(
        batch: &'a Batch,
        strategy: &Strategy,
        capacities: &'a Capacities,
        sequences: Vec<Vec<usize>>,
        budget: PackingBudget,
    ) -> Result<Assignment<'a>> {
        let (packers, class_of) = packers(batch, &capacities.classes(strategy)?, budget);
        Ok(Assignment::new(packers, class_of, sequences))
    }

    /// The same assignment, with replicas of each class waiting for transfers.
    #[must_use]
    pub fn waiting(self, waits: impl Fn(&ReplicaClass) -> Waits) -> Assignment<'a> {
        let later = |packer: Packer<'a>| {
            let Waits { delay, exposure } = waits(packer.cost().class());
            packer.delayed(delay).exposed(exposure)
        };
        Assignment::new(self.packers.into_iter().map(later).collect(), self.class_of, self.sequences)
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

    /// The refined packing of each replica.
    pub fn refined_packings(&mut self) -> Vec<Packing> {
        let pack = |replica: usize| self.packers[self.class_of[replica]].pack(&self.sequences[replica]);
        (0..self.sequences.len()).map(pack).collect()
    }

    /// The packing of each replica, refined only if it would otherwise end later than the last refined one: the
    /// iteration is as short, and most replicas of a large cluster stay unrefined.
    pub fn refined_where_last(&mut self) -> Vec<Packing> {
        let draft = |replica: usize| self.packers[self.class_of[replica]].draft(&self.sequences[replica]);
        let mut packings: Vec<Packing> = (0..self.sequences.len()).map(draft).collect();
        let mut by_end: BinaryHeap<(Millis, Reverse<usize>)> =
            packings.iter().enumerate().map(|(replica, packing)| (packing.ms, Reverse(replica))).collect();
        let mut last = Millis::ZERO;
        while let Some((_, Reverse(replica))) = by_end.pop().filter(|(ms, _)| *ms > last) {
            let draft = std::mem::take(&mut packings[replica]);
            packings[replica] = self.packer(replica).refined(draft);
            last = last.max(packings[replica].ms);
        }
        packings
    }

    /// Changes each replica's packing to overlap its transfers, to which it has these exposures; see
    /// [`Packer::overlapping`].
    pub fn overlap_transfers(&mut self, packings: &mut [Packing], exposures: &[Option<Arc<Exposure>>]) {
        for (replica, packing) in packings.iter_mut().enumerate() {
            let packer = &mut self.packers[self.class_of[replica]];
            packer.exposure = exposures.get(replica).cloned().flatten();
            *packing = packer.overlapping(&self.sequences[replica], std::mem::take(packing));
        }
    }

    /// The packer of a replica.
    pub fn packer(&mut self, replica: usize) -> &mut Packer<'a> {
        &mut self.packers[self.class_of[replica]]
    }

    /// The replicas of one class.
    pub(super) fn replicas(&self, class: usize) -> Range<usize> {
        replicas(&self.class_of, class)
    }

    pub(super) fn packer_of(&self, replica: usize) -> &Packer<'a> {
        &self.packers[self.class_of[replica]]
    }
}

/// A packer for each class of replicas, and each replica's index into them.
pub(super) fn packers<'a>(
    batch: &'a Batch,
    classes: &[(&'a ClassCapacity, usize)],
    budget: PackingBudget,
) -> (Vec<Packer<'a>>, Vec<usize>) {
    let packers = classes.iter().map(|(capacity, _)| Packer::new(capacity, batch, budget)).collect();
    let replicas = classes.iter().enumerate();
    let class_of = replicas.flat_map(|(class, (_, replicas))| std::iter::repeat_n(class, *replicas)).collect();
    (packers, class_of)
}

/// The replicas of one class; these are consecutive.
pub(super) fn replicas(class_of: &[usize], class: usize) -> Range<usize> {
    let first = class_of.partition_point(|&other| other < class);
    first..class_of.partition_point(|&other| other <= class)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::cost::{CostModel, preset};
    use crate::spec::{CapacityBudget, Cluster};
    use crate::units::Tokens;

    pub(in super::super) fn capacities() -> Capacities {
        let cost = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap());
        Capacities::new(cost, CapacityBudget::ONLINE)
    }

    /// The ids of these lengths, longest first.
    pub(in super::super) fn by_length(lengths: &[i64]) -> Vec<usize> {
        let mut by_length: Vec<usize> = (0..lengths.len()).collect();
        by_length.sort_by_key(|&id| Reverse(lengths[id]));
        by_length
    }

    /// Lengths between 200 and 7,700, far apart from one to the next.
    pub(in super::super) fn spread_lengths(seed: i64, number: i64) -> Vec<i64> {
        (0..number).map(|place| 200 + (seed * 977 + place * 4_409) % 7_500).collect()
    }

    /// Checks that replicas have each sequence once, longest first, and admit their own.
    pub(in super::super) fn assert_assigned(assignment: &Assignment, tokens: &[Tokens]) {
        let mut assigned = assignment.sequences.concat();
        assigned.sort_unstable();
        assert!(assigned.into_iter().eq(0..tokens.len()));
        for (replica, ids) in assignment.sequences.iter().enumerate() {
            let cost = assignment.packer_of(replica).cost();
            assert!(ids.iter().all(|&id| cost.admits(tokens[id])), "{}: {replica}", cost.scheme());
            assert!(ids.is_sorted_by_key(|&id| Reverse(tokens[id])), "{}: {ids:?}", cost.scheme());
        }
    }

    #[test]
    fn the_iteration_is_as_short_if_only_the_last_are_refined() {
        let capacities = capacities();
        let lengths: Vec<i64> = (0..96).map(|i| 5_500 - i * 50 - i * 7_919 % 400).collect();
        let (batch, by_length) = (Batch::new(&lengths, None).unwrap(), by_length(&lengths));
        let mut left_alone = 0;
        for (replicas, scheme) in [(8, "<tp4,pp2>"), (4, "<tp4,pp4>"), (3, "<tp4,pp4>")] {
            let assigned_again =
                (0..replicas).map(|replica| by_length.iter().copied().skip(replica).step_by(replicas).collect());
            let strategy = format!("{replicas}x{scheme}").parse().unwrap();
            let mut assignment =
                Assignment::of(&batch, &strategy, &capacities, assigned_again.collect(), PackingBudget::ONLINE)
                    .unwrap();
            let (all, last) = (assignment.refined_packings(), assignment.refined_where_last());
            let end = |packings: &[Packing]| packings.iter().map(|packing| packing.ms).max().unwrap();
            assert_eq!(end(&all), end(&last), "{strategy}");
            assert!(end(&last) <= assignment.iteration_ms(), "{strategy}");
            left_alone += all.iter().zip(&last).filter(|(one, other)| one.ms < other.ms).count();
        }
        assert!(left_alone > 0);
    }
}
