//! The owner layout: one owner for every element, fixed for the whole run.

use std::ops::Range;

use crate::error::Result;
use crate::layout::bucket_owners::BucketOwners;
use crate::layout::runs::{Runs, common, length};
use crate::layout::{ParameterTable, Position, strategy_positions};
use crate::spec::{Cluster, Scheme, Strategy, shard_scheme};

/// Every bucket cut over the ranks.
///
/// One contiguous piece of the whole model per rank would make a single rank the owner of a whole bucket, and each
/// bucket's transfer would wait for it.
///
/// Consecutive pieces belong to the ranks at the same index in each node, first those at the first index of all nodes,
/// then those at the second: a *rail*. A rank's *place* is its number in this order. The elements that one rank of a
/// node relays to and from the others of its rail are therefore one run of the bucket.
///
/// Pieces are intervals of the bucket's *owner order*, which is the canonical one if all ranks share it evenly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptimizerShards {
    buckets: Vec<BucketOwners>,
    ranks: u64,
    nodes: u64,
}

/// A part of a parameter in a rank's optimizer shard, in canonical elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardSlice {
    /// Index in the table.
    pub parameter: usize,
    /// Elements of the parameter.
    pub elements: Range<u64>,
    /// Start in the rank's optimizer shard.
    pub offset: u64,
}

impl OptimizerShards {
    /// The owner layout of a run whose replicas have only these schemes.
    ///
    /// If a rank's shard under one of them is a part of its shard under each, an element's owner is one of the ranks
    /// that hold it, and as many elements move as under ZeRO-1 (Rajbhandari et al. 2020, arXiv 1910.02054). Otherwise
    /// every bucket is cut evenly over all ranks, since no owner holds its elements under every scheme.
    ///
    /// Refused with `scheme_model_mismatch` if the model has too few layers for a scheme.
    pub fn new(table: &ParameterTable, cluster: &Cluster, schemes: &[Scheme]) -> Result<OptimizerShards> {
        let nodes = cluster.gpus().div_ceil(cluster.gpus_per_node());
        let mut shards = OptimizerShards { buckets: Vec::new(), ranks: cluster.gpus().into(), nodes: nodes.into() };
        shards.buckets = match shard_scheme(schemes, cluster) {
            Some(scheme) => {
                BucketOwners::in_replica_groups(table, scheme, &shards.positions_by_place(scheme, cluster)?)?
            }
            None => table.bucket_elements().into_iter().map(BucketOwners::even).collect(),
        };
        Ok(shards)
    }

    /// The positions of the ranks if replicas of a scheme take them all, in the order of their places.
    fn positions_by_place(&self, scheme: Scheme, cluster: &Cluster) -> Result<Vec<Position>> {
        let replicas = usize::try_from(self.ranks / scheme.ranks()).unwrap_or(usize::MAX);
        let positions = strategy_positions(&Strategy::new(vec![scheme; replicas])?, cluster)?;
        let by_place = self.node_of(0).flat_map(|first| self.rail_of(first));
        Ok(by_place.filter_map(|rank| positions[usize::try_from(rank).unwrap_or(usize::MAX)]).collect())
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u64 {
        self.ranks
    }

    /// Number of nodes.
    pub fn nodes(&self) -> u64 {
        self.nodes
    }

    /// The messages that a rank sends in a bucket's exchange: to the others of its node, and to the other nodes.
    pub(crate) fn messages(&self) -> u64 {
        (length(&self.node_of(0)) - 1) + (self.nodes() - 1)
    }

    /// The ranks of the node of `rank`, in their order.
    pub fn node_of(&self, rank: u64) -> Range<u64> {
        let size = self.ranks / self.nodes;
        let first = rank / size * size;
        first..first + size
    }

    /// The ranks at the index of `rank` in each node, in the order of nodes.
    pub fn rail_of(&self, rank: u64) -> impl Iterator<Item = u64> {
        let size = self.ranks / self.nodes;
        (rank % size..self.ranks).step_by(usize::try_from(size).unwrap_or(usize::MAX))
    }

    /// Elements of a bucket that `rank` owns, in owner order.
    pub fn piece(&self, bucket: usize, rank: u64) -> Range<u64> {
        let size = self.ranks / self.nodes;
        let place = rank % size * self.nodes + rank / size;
        self.bound(bucket, place)..self.bound(bucket, place + 1)
    }

    /// Elements of a bucket that the rail of `rank` owns, in owner order.
    pub fn rail_piece(&self, bucket: usize, rank: u64) -> Range<u64> {
        let first = rank % (self.ranks / self.nodes) * self.nodes;
        self.bound(bucket, first)..self.bound(bucket, first + self.nodes)
    }

    /// Most elements that one rail owns, of any of these buckets.
    pub fn largest_relay(&self, buckets: Range<usize>) -> u64 {
        let rails = |bucket| self.node_of(0).map(move |rank| length(&self.rail_piece(bucket, rank)));
        buckets.flat_map(rails).max().unwrap_or_default()
    }

    /// Most elements that one rank owns, of any of these buckets.
    pub fn largest_piece(&self, buckets: Range<usize>) -> u64 {
        let pieces = |bucket| (0..self.ranks).map(move |rank| length(&self.piece(bucket, rank)));
        buckets.flat_map(pieces).max().unwrap_or_default()
    }

    fn bound(&self, bucket: usize, place: u64) -> u64 {
        self.buckets[bucket].bound(place, self.ranks)
    }

    /// Whether two buckets are cut alike.
    pub(super) fn are_alike(&self, one: usize, other: usize) -> bool {
        self.buckets[one] == self.buckets[other]
    }

    /// The runs of a bucket's canonical elements in owner order, in canonical order.
    pub(super) fn in_owner_order(&self, bucket: usize, elements: Range<u64>) -> Runs {
        self.buckets[bucket].in_owner_order(elements)
    }

    /// Start of a bucket's piece in the optimizer shard of `rank`; the shard's size, one past the last bucket.
    pub fn offset(&self, bucket: usize, rank: u64) -> u64 {
        (0..bucket).map(|earlier| length(&self.piece(earlier, rank))).sum()
    }

    /// Every slice in the optimizer shard of `rank`, in order.
    pub fn slices(&self, table: &ParameterTable, rank: u64) -> Vec<ShardSlice> {
        let mut slices = Vec::new();
        let mut offset = 0;
        for bucket in 0..self.buckets.len() {
            for run in self.buckets[bucket].canonical(self.piece(bucket, rank)) {
                for parameter in table.of_bucket(bucket) {
                    let place = table.place(parameter).1;
                    let shared = common(&place, &run);
                    if !shared.is_empty() {
                        let elements = shared.start - place.start..shared.end - place.start;
                        slices.push(ShardSlice { parameter, elements, offset });
                        offset += length(&shared);
                    }
                }
            }
        }
        slices
    }
}
