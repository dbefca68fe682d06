//! The home layout: one home for every element, fixed for the whole run.

use std::ops::Range;

use crate::layout::ParameterTable;
use crate::spec::Cluster;

/// Every bucket cut evenly over all ranks.
///
/// One contiguous piece of the whole model per rank would make a single rank the owner of a whole bucket,
/// and each bucket's transfer would wait for it.
///
/// Consecutive pieces go to the ranks that have the same place in each node, the first of all nodes, then the second: a
/// *rail*. So what one rank of a node relays to and from the others of its rail is one run of the bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    bucket_elements: Vec<u64>,
    ranks: u64,
    nodes: u64,
}

/// A part of a parameter in a rank's home buffer, in canonical elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HomeSlice {
    /// Index in the table.
    pub parameter: usize,
    /// Its elements.
    pub elements: Range<u64>,
    /// Where it starts in the rank's home buffer.
    pub offset: u64,
}

impl Home {
    /// The home layout of a model over the ranks of a cluster.
    pub fn new(table: &ParameterTable, cluster: Cluster) -> Home {
        let nodes = cluster.gpus().div_ceil(cluster.gpus_per_node());
        Home { bucket_elements: table.bucket_elements(), ranks: u64::from(cluster.gpus()), nodes: u64::from(nodes) }
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u64 {
        self.ranks
    }

    /// Number of nodes.
    pub fn nodes(&self) -> u64 {
        self.nodes
    }

    /// The ranks of the node of `rank`, in their order.
    pub fn node_of(&self, rank: u64) -> Range<u64> {
        let size = self.ranks / self.nodes;
        let first = rank / size * size;
        first..first + size
    }

    /// The ranks with the place of `rank` in each node, in the order of nodes.
    pub fn rail_of(&self, rank: u64) -> impl Iterator<Item = u64> {
        let size = self.ranks / self.nodes;
        (rank % size..self.ranks).step_by(usize::try_from(size).unwrap_or(usize::MAX))
    }

    /// The elements of a bucket whose home is `rank`.
    pub fn piece(&self, bucket: usize, rank: u64) -> Range<u64> {
        let size = self.ranks / self.nodes;
        let place = rank % size * self.nodes + rank / size;
        self.bound(bucket, place)..self.bound(bucket, place + 1)
    }

    /// The elements of a bucket whose homes are on the rail of `rank`.
    pub fn rail_piece(&self, bucket: usize, rank: u64) -> Range<u64> {
        let first = rank % (self.ranks / self.nodes) * self.nodes;
        self.bound(bucket, first)..self.bound(bucket, first + self.nodes)
    }

    fn bound(&self, bucket: usize, place: u64) -> u64 {
        self.bucket_elements[bucket] * place / self.ranks
    }

    /// Where a bucket's piece starts in the home buffer of `rank`; the buffer's size, one past the last bucket.
    pub fn offset(&self, bucket: usize, rank: u64) -> u64 {
        (0..bucket).map(|earlier| self.piece(earlier, rank)).map(|piece| piece.end - piece.start).sum()
    }

    /// Every slice in the home buffer of `rank`, in order.
    pub fn slices(&self, table: &ParameterTable, rank: u64) -> Vec<HomeSlice> {
        let slice = |parameter: usize| {
            let (bucket, place) = table.place(parameter);
            let piece = self.piece(bucket, rank);
            let shared = place.start.max(piece.start)..place.end.min(piece.end);
            (shared.start < shared.end).then(|| HomeSlice {
                parameter,
                elements: shared.start - place.start..shared.end - place.start,
                offset: self.offset(bucket, rank) + shared.start - piece.start,
            })
        };
        (0..table.parameters().len()).filter_map(slice).collect()
    }
}
