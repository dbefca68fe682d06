//! The volume of each bucket's transfer, between nodes and into the busiest GPU.
//!
//! Between nodes an element crosses once for each node that holds it, however many of its ranks do: gradients of ranks
//! that hold the same elements are added inside the node first, and a parameter is distributed inside the node after it
//! arrives. This counts the elements that [`transfer()`](crate::layout::transfer()) moves.
//!
//! Nodes whose ranks have the same positions hold the same elements, and layers of the same stages are alike. The cost
//! therefore grows with the distinct ones among them times the ranks, not with pairs of ranks or with layers.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{LayoutError, Result};
use crate::layout::runs::{Runs, joined, length, overlap};
use crate::layout::{OptimizerShards, ParameterTable, Position, local_slices};
use crate::spec::Axis;

/// Elements of a bucket that one node exchanges with the others, in the direction of gradients; parameters go the other
/// way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeVolume {
    /// Elements that leave the node: positions there, owned elsewhere.
    pub sent: u64,
    /// Elements that arrive at the node: owned there, positions elsewhere, once for each node that holds them.
    pub received: u64,
}

/// The volume of one bucket's transfer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketVolume {
    /// Volume of each node.
    pub nodes: Vec<NodeVolume>,
    /// The most elements that one rank holds and does not own.
    pub fullest_rank: u64,
}

/// The volume of each bucket over the nodes of `shards`, between it and the layout in which each rank has its position.
///
/// Refused with `plan_mismatch` if `shards` is not over the same ranks, with `scheme_model_mismatch` if a position is of
/// a pipeline with more stages than the model has layers for.
pub fn bucket_volumes(
    table: &ParameterTable,
    shards: &OptimizerShards,
    positions: &[Option<Position>],
) -> Result<Vec<BucketVolume>> {
    let gpus = positions.len() as u64;
    if gpus != shards.ranks() {
        return Err(LayoutError::RanksMismatch { rank: 0, gpus, shards: shards.ranks() }.into());
    }
    let groups = ReplicaGroups::new(table, shards, positions)?;
    Ok(groups.by_bucket(table, shards, |bucket| groups.volume(bucket, shards)))
}

/// For each bucket the least volume, at any place, of a replica that has these positions at some place: of its busiest
/// node to receive, and of its fullest rank.
///
/// Refused as [`bucket_volumes`].
pub fn least_volumes(
    table: &ParameterTable,
    shards: &OptimizerShards,
    positions: &[Option<Position>],
) -> Result<Vec<BucketVolume>> {
    let groups = ReplicaGroups::new(table, shards, positions)?;
    Ok(groups.by_bucket(table, shards, |bucket| groups.least_volume(bucket, shards)))
}

/// The local shards of all ranks.
struct ReplicaGroups {
    /// Runs by distinct position and bucket. Context ranks hold the same, and count as one position.
    runs: Vec<Vec<Runs>>,
    /// The position of each rank, as its index in `runs`.
    of_rank: Vec<Option<usize>>,
    /// Nodes by the set of their ranks' positions.
    nodes: BTreeMap<BTreeSet<usize>, Vec<usize>>,
    gpus_per_node: usize,
}

impl ReplicaGroups {
    fn new(table: &ParameterTable, shards: &OptimizerShards, positions: &[Option<Position>]) -> Result<ReplicaGroups> {
        let gpus_per_node = usize::try_from(length(&shards.node_of(0))).unwrap_or(usize::MAX);
        let of_parameters =
            |position: Position| Position { coordinates: position.coordinates.with(Axis::Context, 0), ..position };
        let distinct: BTreeSet<Position> = positions.iter().flatten().copied().map(of_parameters).collect();
        let places: BTreeMap<Position, usize> = distinct.iter().copied().zip(0..).collect();
        let of_rank: Vec<Option<usize>> =
            positions.iter().map(|position| position.map(|position| places[&of_parameters(position)])).collect();
        let runs = distinct.into_iter().map(|position| local_runs(table, shards, position)).collect::<Result<_>>()?;
        let mut nodes: BTreeMap<BTreeSet<usize>, Vec<usize>> = BTreeMap::new();
        for (node, ranks) in of_rank.chunks(gpus_per_node).enumerate() {
            nodes.entry(ranks.iter().flatten().copied().collect()).or_default().push(node);
        }
        Ok(ReplicaGroups { runs, of_rank, nodes, gpus_per_node })
    }

    /// A volume of each bucket, counted once for alike buckets that follow each other.
    fn by_bucket(
        &self,
        table: &ParameterTable,
        shards: &OptimizerShards,
        volume: impl Fn(usize) -> BucketVolume,
    ) -> Vec<BucketVolume> {
        let mut volumes: Vec<BucketVolume> = Vec::with_capacity(table.buckets());
        for bucket in 0..table.buckets() {
            let is_as_before = bucket > 0 && shards.are_alike(bucket - 1, bucket) && self.are_alike(bucket);
            volumes.push(match volumes.last() {
                Some(before) if is_as_before => before.clone(),
                _ => volume(bucket),
            });
        }
        volumes
    }

    /// Whether every rank holds the same of a bucket as of the one before.
    fn are_alike(&self, bucket: usize) -> bool {
        self.runs.iter().all(|runs| runs[bucket] == runs[bucket - 1])
    }

    fn volume(&self, bucket: usize, shards: &OptimizerShards) -> BucketVolume {
        let ranks = self.of_rank.len();
        let mut nodes = vec![NodeVolume::default(); ranks.div_ceil(self.gpus_per_node)];
        for (positions, alike) in &self.nodes {
            let shared = self.owned_by_nodes(positions, bucket, shards);
            let all: u64 = shared.iter().sum();
            for &member in alike {
                nodes[member].sent = all - shared[member];
            }
            for (index, volume) in nodes.iter_mut().enumerate() {
                let others = alike.len() - usize::from(alike.binary_search(&index).is_ok());
                volume.received += shared[index] * others as u64;
            }
        }
        let totals: Vec<u64> = self.runs.iter().map(|runs| runs[bucket].iter().map(length).sum()).collect();
        let foreign = |(rank, place): (usize, &Option<usize>)| {
            place.map(|place| totals[place] - overlap(&self.runs[place][bucket], &shards.piece(bucket, rank as u64)))
        };
        let fullest_rank = self.of_rank.iter().enumerate().filter_map(foreign).max().unwrap_or_default();
        BucketVolume { nodes, fullest_rank }
    }

    /// The elements of a bucket that these positions hold together, by the node whose ranks own them.
    fn owned_by_nodes(&self, positions: &BTreeSet<usize>, bucket: usize, shards: &OptimizerShards) -> Vec<u64> {
        let ranks = self.of_rank.len();
        let runs = joined(positions.iter().flat_map(|&place| self.runs[place][bucket].iter().cloned()).collect());
        let owned_by = |first: usize| {
            let members = first..(first + self.gpus_per_node).min(ranks);
            members.map(|rank| overlap(&runs, &shards.piece(bucket, rank as u64))).sum()
        };
        (0..ranks).step_by(self.gpus_per_node).map(owned_by).collect()
    }

    /// The least volume of these positions at any place: on the nodes and the ranks that own most of it.
    fn least_volume(&self, bucket: usize, shards: &OptimizerShards) -> BucketVolume {
        let of_node = |positions: &BTreeSet<usize>| {
            let owned = self.owned_by_nodes(positions, bucket, shards);
            owned.iter().sum::<u64>() - owned.iter().max().copied().unwrap_or_default()
        };
        let sent = self.nodes.keys().map(of_node).max().unwrap_or_default();
        let of_rank = |runs: &Vec<Runs>| {
            let owned = (0..self.of_rank.len()).map(|rank| overlap(&runs[bucket], &shards.piece(bucket, rank as u64)));
            runs[bucket].iter().map(length).sum::<u64>() - owned.max().unwrap_or_default()
        };
        let fullest_rank = self.runs.iter().map(of_rank).max().unwrap_or_default();
        BucketVolume { nodes: vec![NodeVolume { sent, received: 0 }], fullest_rank }
    }
}

/// The local shard of a rank at this position: by bucket, disjoint runs of its elements in owner order.
fn local_runs(table: &ParameterTable, shards: &OptimizerShards, position: Position) -> Result<Vec<Runs>> {
    let mut runs: Vec<Runs> = vec![Vec::new(); table.buckets()];
    for slice in local_slices(table, position)? {
        let (bucket, place) = table.place(slice.parameter);
        let width = table.parameters()[slice.parameter].row_elements;
        let elements = place.start + slice.rows.start * width..place.start + slice.rows.end * width;
        runs[bucket].extend(shards.in_owner_order(bucket, elements));
    }
    Ok(runs.into_iter().map(joined).collect())
}
