//! The position of a rank in its replica, and its groups there.

use crate::error::{LayoutError, Result};
use crate::layout::place;
use crate::spec::{Axis, Cluster, Coordinates, Scheme, Strategy};

/// The position of a rank in its replica.
///
/// A replica's ranks are listed stage by stage; within a stage context rank by context rank, and within one of these in
/// tensor order. Only this module defines that order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The replica's scheme.
    pub scheme: Scheme,
    /// The rank's index along each axis: its stage, its share of each micro-batch's tokens, and its index among the
    /// tensor ranks that share these tokens.
    pub coordinates: Coordinates,
}

impl Position {
    /// The position of these indices in a replica of `scheme`.
    pub fn new(scheme: Scheme, stage: u16, context_rank: u16, tensor_rank: u16) -> Result<Position> {
        let coordinates = Coordinates::new([tensor_rank, context_rank, stage]);
        if !scheme.degrees().contains(coordinates) {
            return Err(LayoutError::PositionOutOfRange { scheme, stage, context_rank, tensor_rank }.into());
        }
        Ok(Position { scheme, coordinates })
    }

    /// Every position of a replica of `scheme`, in the order of its ranks.
    pub fn all(scheme: Scheme) -> impl Iterator<Item = Position> {
        scheme.degrees().coordinates().map(move |coordinates| Position { scheme, coordinates })
    }

    /// The rank's pipeline stage.
    pub fn stage(self) -> u16 {
        self.coordinates.of(Axis::Pipeline)
    }

    /// The rank's index among the stage's context ranks, which is its share of each micro-batch's tokens.
    pub fn context_rank(self) -> u16 {
        self.coordinates.of(Axis::Context)
    }

    /// The rank's index among the tensor ranks that share its tokens.
    pub fn tensor_rank(self) -> u16 {
        self.coordinates.of(Axis::Tensor)
    }

    /// The index of its slice of the stage's parameters; context ranks hold the same.
    pub fn tensor_slice(self) -> u16 {
        self.scheme.tensor_slice(self.tensor_rank())
    }

    /// Its index among the ranks of its stage.
    pub fn in_stage_group(self) -> u32 {
        self.scheme.degrees().number(self.coordinates.with(Axis::Pipeline, 0))
    }

    /// The ranks that share its tokens and split its stage's parameters, in tensor order, if it is `rank`.
    ///
    /// A stage's ranks are consecutive, so one of them determines them all.
    pub fn tensor_group(self, rank: u32) -> Result<Vec<u32>> {
        self.group(Axis::Tensor, rank)
    }

    /// The ranks with the same parameters and the other tokens, in context order, if it is `rank`.
    pub fn context_group(self, rank: u32) -> Result<Vec<u32>> {
        self.group(Axis::Context, rank)
    }

    /// The ranks of its stage that differ from it along one axis alone, if it is `rank`.
    fn group(self, axis: Axis, rank: u32) -> Result<Vec<u32>> {
        let degrees = self.scheme.degrees();
        let first = self.first_of_stage_group(rank)?;
        let in_stage = self.coordinates.with(Axis::Pipeline, 0);
        Ok((0..degrees.of(axis)).map(|place| first + degrees.number(in_stage.with(axis, place))).collect())
    }

    fn first_of_stage_group(self, rank: u32) -> Result<u32> {
        let (place, stage_group) = (self.in_stage_group(), self.scheme.stage_group_ranks());
        let first = rank.checked_sub(place).filter(|first| first.checked_add(stage_group).is_some());
        first.ok_or_else(|| LayoutError::RankOutOfStageGroup { rank, place, stage_group }.into())
    }
}

/// The position of every rank of the cluster if each replica of `strategy` has work.
pub fn strategy_positions(strategy: &Strategy, cluster: &Cluster) -> Result<Vec<Option<Position>>> {
    let ranks = place(strategy, cluster)?;
    let replicas = strategy.schemes().iter().copied().zip(ranks.iter().map(Vec::as_slice));
    Ok(positions_of(replicas, cluster))
}

/// The position of every rank of the cluster if these replicas occupy these ranks; none for ranks of no replica.
///
/// A replica without work is left out: it holds nothing, and its ranks take part in the iteration only as owners.
pub fn positions_of<'a>(
    replicas: impl Iterator<Item = (Scheme, &'a [u32])>,
    cluster: &Cluster,
) -> Vec<Option<Position>> {
    let mut positions = vec![None; cluster.gpus() as usize];
    for (scheme, ranks) in replicas {
        for (&rank, position) in ranks.iter().zip(Position::all(scheme)) {
            positions[rank as usize] = Some(position);
        }
    }
    positions
}

/// The number of micro-batches of every rank of the cluster, given the ranks and the number of each replica; 0 for ranks
/// without work.
pub fn micro_batches_of_ranks<'a>(replicas: impl Iterator<Item = (&'a [u32], usize)>, cluster: &Cluster) -> Vec<usize> {
    let mut counts = vec![0; cluster.gpus() as usize];
    for (ranks, number) in replicas {
        for &rank in ranks {
            counts[rank as usize] = number;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn places(scheme: &str) -> Vec<Position> {
        Position::all(scheme.parse().unwrap()).collect()
    }

    #[test]
    fn tensor_ranks_are_innermost_and_stages_outermost() {
        let numbers = |at: Position| (at.stage(), at.context_rank(), at.tensor_rank());
        let listed: Vec<_> = places("<tp2,cp3,pp2>").into_iter().map(numbers).collect();
        let sorted: BTreeSet<_> = listed.iter().copied().collect();
        assert_eq!(listed, sorted.into_iter().collect::<Vec<_>>());
        assert_eq!((listed.len(), listed[3], listed[6]), (12, (0, 1, 1), (1, 0, 0)));
        assert!(
            places("<tp2,cp3,pp2>").iter().enumerate().all(|(index, at)| at.in_stage_group() as usize == index % 6)
        );
    }

    #[test]
    fn each_rank_is_in_one_group_of_each_kind() {
        let first = 24;
        let ranks: Vec<(u32, Position)> = (first..).zip(places("<tp2,cp3,pp2>")).collect();
        let groups: BTreeSet<Vec<u32>> = ranks.iter().map(|(rank, at)| at.tensor_group(*rank).unwrap()).collect();
        assert!(groups.iter().map(|group| (group[0], group.len())).eq((24..36).step_by(2).map(|rank| (rank, 2))));
        let groups: Vec<Vec<u32>> = ranks.iter().map(|(rank, at)| at.context_group(*rank).unwrap()).collect();
        assert_eq!((&groups[0], &groups[5], &groups[6]), (&vec![24, 26, 28], &vec![25, 27, 29], &vec![30, 32, 34]));
        for ((rank, at), group) in ranks.iter().zip(&groups) {
            assert_eq!(group[usize::from(at.context_rank())], *rank);
        }
    }

    #[test]
    fn a_rank_outside_its_stage_group_is_refused() {
        let last = *places("<tp2,cp3>").last().unwrap();
        assert_eq!(last.context_group(5).unwrap(), [1, 3, 5]);
        assert_eq!(last.tensor_group(4).unwrap_err().code(), "argument_invalid");
        assert_eq!(places("<cp2>")[0].context_group(u32::MAX).unwrap_err().code(), "argument_invalid");
    }

    #[test]
    fn a_place_beyond_a_degree_is_refused() {
        let scheme: Scheme = "<tp2,cp3,pp4>".parse().unwrap();
        assert!(Position::new(scheme, 3, 2, 1).is_ok());
        for (stage, context_rank, tensor_rank) in [(4, 0, 0), (0, 3, 0), (0, 0, 2)] {
            let error = Position::new(scheme, stage, context_rank, tensor_rank).unwrap_err();
            assert_eq!(error.code(), "argument_invalid");
        }
    }
}
