//! The exchanges of each rank that bring gradients to their owners, and parameters back.
//!
//! Inside one node every rank that holds an element exchanges with its owner. Between nodes an element travels once for
//! each node that holds it: the rank of a node that is on the owner's rail *relays* it. Gradients of the node's ranks
//! are added up there and the sum goes on to the owner; a parameter arrives there and is distributed inside the node. A
//! rank therefore exchanges with the others of its node and with one rank of each other node, and all ranks relay
//! alike.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::error::{LayoutError, Result};
use crate::layout::runs::{Runs, common, joined, length, overlap, within};
use crate::layout::{OptimizerShards, ParameterTable, Position, local_slices};

/// A run of elements in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Start of the run.
    pub offset: u64,
    /// Number of elements.
    pub elements: u64,
}

/// The exchange of one rank with its peers, in the direction of gradients; each of them has an equal list of peers.
///
/// A rank sends the `near` segments one after another, `near_counts[i]` elements to peer `i`, and receives
/// `far_counts[i]` elements from it, which belong to the `far` segments in order. Parameters go the other way: the
/// `far` segments are sent and the `near` ones filled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exchange {
    /// Segments of the buffer that gradients are sent from, by receiver.
    pub near: Vec<Segment>,
    /// Number of elements sent to each peer.
    pub near_counts: Vec<u64>,
    /// Segments of the buffer that gradients are added to, by sender.
    pub far: Vec<Segment>,
    /// Number of elements received from each peer.
    pub far_counts: Vec<u64>,
}

/// One bucket's transfer, from the side of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketTransfer {
    /// Exchange with the ranks of its node, in their order: between local shards and relays; with a single node,
    /// optimizer shards.
    pub inside: Exchange,
    /// Elements that the rank relays; 0 with a single node.
    pub relayed: u64,
    /// Elements of parameters in transfer, relays included, on the rank with most of them: the same for all ranks.
    pub room: u64,
    /// Exchange with its rail, in the order of nodes: between relays, of which the rank's is packed, and optimizer
    /// shards. None with a single node.
    pub between: Option<Exchange>,
}

/// The transfer of `rank` in every bucket, between owners and the layout in which each rank has its position.
pub fn transfer(
    table: &ParameterTable,
    shards: &OptimizerShards,
    positions: &[Option<Position>],
    rank: u32,
) -> Result<Vec<BucketTransfer>> {
    let (gpus, ranks) = (positions.len() as u64, shards.ranks());
    if gpus != ranks || u64::from(rank) >= ranks {
        return Err(LayoutError::RanksMismatch { rank: rank.into(), gpus, shards: ranks }.into());
    }
    let local = LocalShard::new(table, shards, positions)?;
    let (mut start, mut room) = (0, 0);
    let transfer = |bucket: usize| {
        let piece = shards.piece(bucket, rank.into());
        let side = |rank: u64| Side { local: &local, shards, bucket, rank, start };
        let transfer = side(rank.into()).transfer();
        let is_as_before = bucket > 0 && shards.are_alike(bucket - 1, bucket) && local.are_alike(bucket - 1, bucket);
        if !is_as_before {
            room = (0..ranks).map(|rank| side(rank).room()).max().unwrap_or_default();
        }
        start += length(&piece);
        BucketTransfer { room, ..transfer }
    };
    Ok((0..table.buckets()).map(transfer).collect())
}

/// A slice of a bucket in a rank's local shard, by its elements in owner order.
#[derive(Clone, Debug)]
struct Slice {
    elements: Range<u64>,
    offset: u64,
}

/// The local shards of all ranks. Ranks at one position hold the same, and a bucket needs its own slices alone:
/// otherwise 1,024 ranks of a model with 60 layers would be 70 million comparisons.
struct LocalShard<'a> {
    positions: &'a [Option<Position>],
    /// Slices by position and bucket.
    slices: BTreeMap<Position, Vec<Vec<Slice>>>,
    /// Runs by node and bucket; empty with a single node.
    nodes: Vec<Vec<Runs>>,
}

impl LocalShard<'_> {
    fn new<'a>(
        table: &ParameterTable,
        shards: &OptimizerShards,
        positions: &'a [Option<Position>],
    ) -> Result<LocalShard<'a>> {
        let mut slices: BTreeMap<Position, Vec<Vec<Slice>>> = BTreeMap::new();
        for &position in positions.iter().flatten() {
            if let Entry::Vacant(free) = slices.entry(position) {
                free.insert(by_bucket(table, shards, position)?);
            }
        }
        let mut local = LocalShard { positions, slices, nodes: Vec::new() };
        if shards.nodes() > 1 {
            local.nodes = local.of_nodes(table.buckets(), positions.len() / at(shards.nodes()));
        }
        Ok(local)
    }

    /// The union of the local shards of each node; nodes whose ranks have the same positions hold the same.
    fn of_nodes(&self, buckets: usize, size: usize) -> Vec<Vec<Runs>> {
        let mut known: BTreeMap<BTreeSet<Position>, Vec<Runs>> = BTreeMap::new();
        let of_node = |ranks: &[Option<Position>]| {
            let distinct: BTreeSet<Position> = ranks.iter().flatten().copied().collect();
            let union = |bucket: usize| {
                let all = distinct.iter().flat_map(|position| &self.slices[position][bucket]);
                joined(all.map(|slice| slice.elements.clone()).collect())
            };
            known.entry(distinct.clone()).or_insert_with(|| (0..buckets).map(union).collect()).clone()
        };
        self.positions.chunks(size).map(of_node).collect()
    }

    /// Whether every rank holds the same of two buckets.
    fn are_alike(&self, one: usize, other: usize) -> bool {
        let elements = |slices: &[Slice]| slices.iter().map(|slice| slice.elements.clone()).collect::<Runs>();
        self.slices.values().all(|buckets| elements(&buckets[one]) == elements(&buckets[other]))
    }

    fn slices(&self, rank: u64, bucket: usize) -> &[Slice] {
        self.positions[at(rank)].map_or(&[], |position| self.slices[&position][bucket].as_slice())
    }
}

/// A rank in a bucket.
struct Side<'a> {
    local: &'a LocalShard<'a>,
    shards: &'a OptimizerShards,
    bucket: usize,
    rank: u64,
    /// Start of the bucket in the rank's optimizer shard.
    start: u64,
}

impl Side<'_> {
    fn transfer(&self) -> BucketTransfer {
        let inside = self.inside();
        if self.shards.nodes() == 1 {
            return BucketTransfer { inside, ..BucketTransfer::default() };
        }
        BucketTransfer { inside, relayed: self.relayed(), between: Some(self.between()), ..BucketTransfer::default() }
    }

    /// Elements of parameters in transfer from this rank: those that it distributes, relays, and sends to relays.
    fn room(&self) -> u64 {
        let rail = self.rail();
        let slices = |peer| self.local.slices(peer, self.bucket).iter();
        let parts = self.shards.node_of(self.rank).flat_map(|peer| slices(peer).filter_map(|slice| part(slice, &rail)));
        let shared: u64 = parts.map(|slice| length(&slice.elements)).sum();
        if self.shards.nodes() == 1 {
            return shared;
        }
        let piece = self.shards.piece(self.bucket, self.rank);
        let sent: u64 = self.shards.rail_of(self.rank).map(|peer| overlap(self.node(peer), &piece)).sum();
        shared + self.relayed() + sent
    }

    fn relayed(&self) -> u64 {
        overlap(self.node(self.rank), &self.rail())
    }

    /// The elements that the node of a rank holds.
    fn node(&self, rank: u64) -> &Runs {
        let size = self.shards.ranks() / self.shards.nodes();
        &self.local.nodes[at(rank / size)][self.bucket]
    }

    fn rail(&self) -> Range<u64> {
        self.shards.rail_piece(self.bucket, self.rank)
    }

    /// Exchange with ranks of the node: elements of this rank's local shard on each one's rail, and elements of each
    /// one's local shard on its own rail.
    fn inside(&self) -> Exchange {
        let mut exchange = Exchange::default();
        for peer in self.shards.node_of(self.rank) {
            let rail = self.shards.rail_piece(self.bucket, peer);
            let near = self.local.slices(self.rank, self.bucket).iter().filter_map(|slice| part(slice, &rail));
            let near = near.map(|slice| segment(slice.offset, &slice.elements));
            exchange.near_counts.push(push_segments(&mut exchange.near, near));
            let local = self.local.slices(peer, self.bucket).iter().filter_map(|slice| part(slice, &self.rail()));
            let far = local.map(|slice| segment(self.place(&slice.elements), &slice.elements));
            exchange.far_counts.push(push_segments(&mut exchange.far, far));
        }
        exchange
    }

    /// Position of elements of the rank's rail in its relay, which has the node's elements of the rail; with a single
    /// node, in the optimizer shard.
    fn place(&self, elements: &Range<u64>) -> u64 {
        let rail = self.rail();
        if self.shards.nodes() == 1 {
            return self.start + elements.start - rail.start;
        }
        overlap(self.node(self.rank), &(rail.start..elements.start))
    }

    /// Exchange with ranks of the rail: elements that the node relays to each owner, and elements that each one's node
    /// relays to this owner.
    fn between(&self) -> Exchange {
        let mut exchange = Exchange::default();
        let own = self.shards.piece(self.bucket, self.rank);
        for peer in self.shards.rail_of(self.rank) {
            let piece = self.shards.piece(self.bucket, peer);
            let sent = within(self.node(self.rank), &piece);
            let near = sent.map(|run| segment(self.place(&run), &run));
            exchange.near_counts.push(push_segments(&mut exchange.near, near));
            let far = within(self.node(peer), &own).map(|run| segment(self.start + run.start - own.start, &run));
            exchange.far_counts.push(push_segments(&mut exchange.far, far));
        }
        exchange
    }
}

/// The slices of each bucket of a rank at a position, each consecutive in owner order.
fn by_bucket(table: &ParameterTable, shards: &OptimizerShards, position: Position) -> Result<Vec<Vec<Slice>>> {
    let mut buckets = vec![Vec::new(); table.buckets()];
    for local in local_slices(table, position)? {
        let (bucket, place) = table.place(local.parameter);
        let width = table.parameters()[local.parameter].row_elements;
        let elements = place.start + local.rows.start * width..place.start + local.rows.end * width;
        let mut offset = local.offset;
        for elements in shards.in_owner_order(bucket, elements) {
            buckets[bucket].push(Slice { elements: elements.clone(), offset });
            offset += length(&elements);
        }
    }
    Ok(buckets)
}

/// The part of a slice inside a piece.
fn part(slice: &Slice, piece: &Range<u64>) -> Option<Slice> {
    let elements = common(&slice.elements, piece);
    let offset = slice.offset + elements.start - slice.elements.start;
    (!elements.is_empty()).then_some(Slice { elements, offset })
}

fn segment(offset: u64, elements: &Range<u64>) -> Segment {
    Segment { offset, elements: length(elements) }
}

fn at(rank: u64) -> usize {
    usize::try_from(rank).unwrap_or(usize::MAX)
}

/// Appends segments, joining neighbours of one peer; returns their number of elements.
fn push_segments(list: &mut Vec<Segment>, segments: impl Iterator<Item = Segment>) -> u64 {
    let first = list.len();
    let mut elements = 0;
    for segment in segments {
        elements += segment.elements;
        match list[first..].last_mut() {
            Some(last) if last.offset + last.elements == segment.offset => last.elements += segment.elements,
            _ => list.push(segment),
        }
    }
    elements
}
