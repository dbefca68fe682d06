//! What each rank trades with every other to bring gradients home, and parameters back.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use crate::error::{Error, Result};
use crate::layout::{HeldSlice, Home, ParameterTable, Position, held_slices};

/// A run of elements in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it starts.
    pub offset: u64,
    /// Its elements.
    pub elements: u64,
}

/// One bucket's trade, from the side of one rank, in the direction of gradients.
///
/// A rank sends the `held` segments one after another, `held_counts[r]` elements to rank `r`, and receives
/// `home_counts[r]` elements from it, which belong to the `home` segments in order. Parameters go the other
/// way: the `home` segments are sent and the `held` ones filled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketTransfer {
    /// Segments of the rank's strategy buffer, by home rank.
    pub held: Vec<Segment>,
    /// Elements that go to each rank.
    pub held_counts: Vec<u64>,
    /// Segments of the rank's home buffer, by holder rank.
    pub home: Vec<Segment>,
    /// Elements that come from each rank.
    pub home_counts: Vec<u64>,
}

/// The trade of `rank` in every bucket, between home and the layout in which each rank stands at its position.
pub fn transfer(
    table: &ParameterTable,
    home: &Home,
    positions: &[Option<Position>],
    rank: u32,
) -> Result<Vec<BucketTransfer>> {
    let (gpus, ranks) = (positions.len() as u64, home.ranks());
    if gpus != ranks || u64::from(rank) >= ranks {
        return Err(Error::RanksMismatch { rank: rank.into(), gpus, home: ranks });
    }
    // Ranks at one position hold the same, and a bucket concerns its own slices alone: else 1,024 ranks of a model with 60
    // layers would be 70 million comparisons.
    let mut known: BTreeMap<Position, Vec<Vec<HeldSlice>>> = BTreeMap::new();
    for &position in positions.iter().flatten() {
        if let Entry::Vacant(free) = known.entry(position) {
            free.insert(by_bucket(table, held_slices(table, position)?));
        }
    }
    let held = |rank: usize, bucket: usize| -> &[HeldSlice] {
        positions[rank].map_or(&[], |position| known[&position][bucket].as_slice())
    };
    let mut buckets = vec![BucketTransfer::default(); table.buckets()];
    let mut start = 0;
    for (bucket, trade) in buckets.iter_mut().enumerate() {
        for other in 0..home.ranks() {
            let common = intersect(table, held(rank as usize, bucket), &home.piece(bucket, other));
            trade.held_counts.push(push_segments(&mut trade.held, common.iter().map(|part| part.held)));
        }
        let piece = home.piece(bucket, u64::from(rank));
        for holder in 0..positions.len() {
            let common = intersect(table, held(holder, bucket), &piece);
            let at_home = common.iter().map(|part| Segment { offset: start + part.in_piece, ..part.held });
            trade.home_counts.push(push_segments(&mut trade.home, at_home));
        }
        start += piece.end - piece.start;
    }
    Ok(buckets)
}

/// Elements that a holder has and a home owns.
struct Common {
    held: Segment,
    in_piece: u64,
}

/// The slices of each bucket.
fn by_bucket(table: &ParameterTable, slices: Vec<HeldSlice>) -> Vec<Vec<HeldSlice>> {
    let mut buckets = vec![Vec::new(); table.buckets()];
    for slice in slices {
        buckets[table.place(slice.parameter).0].push(slice);
    }
    buckets
}

/// What `slices` of a bucket share with `piece` of it, in canonical order: both sides list it alike.
fn intersect(table: &ParameterTable, slices: &[HeldSlice], piece: &Range<u64>) -> Vec<Common> {
    let common = |slice: &HeldSlice| {
        let (_, place) = table.place(slice.parameter);
        let width = table.parameters()[slice.parameter].row_elements;
        let (start, end) = (place.start + slice.rows.start * width, place.start + slice.rows.end * width);
        let shared = start.max(piece.start)..end.min(piece.end);
        (shared.start < shared.end).then(|| Common {
            held: Segment { offset: slice.offset + shared.start - start, elements: shared.end - shared.start },
            in_piece: shared.start - piece.start,
        })
    };
    slices.iter().filter_map(common).collect()
}

/// Appends segments, joining neighbours of one destination; returns their elements.
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
