//! What each rank trades with every other to bring gradients home, and parameters back.

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
    let slices = |position: &Option<Position>| position.map_or(Ok(Vec::new()), |position| held_slices(table, position));
    let held: Vec<Vec<HeldSlice>> = positions.iter().map(slices).collect::<Result<_>>()?;
    let mut buckets = vec![BucketTransfer::default(); table.buckets()];
    for (bucket, trade) in buckets.iter_mut().enumerate() {
        for other in 0..home.ranks() {
            let piece = home.piece(bucket, other);
            let common = intersect(table, bucket, &held[rank as usize], &piece);
            trade.held_counts.push(push_segments(&mut trade.held, common.iter().map(|part| part.held)));
        }
        let piece = home.piece(bucket, u64::from(rank));
        let start = home.offset(bucket, u64::from(rank));
        for holder in &held {
            let common = intersect(table, bucket, holder, &piece);
            let at_home = common.iter().map(|part| Segment { offset: start + part.in_piece, ..part.held });
            trade.home_counts.push(push_segments(&mut trade.home, at_home));
        }
    }
    Ok(buckets)
}

/// Elements that a holder has and a home owns.
struct Common {
    held: Segment,
    in_piece: u64,
}

/// What `slices` share with `piece` of a bucket, in canonical order: both sides list it alike.
fn intersect(table: &ParameterTable, bucket: usize, slices: &[HeldSlice], piece: &Range<u64>) -> Vec<Common> {
    let common = |slice: &HeldSlice| {
        let (own_bucket, place) = table.place(slice.parameter);
        let width = table.parameters()[slice.parameter].row_elements;
        let (start, end) = (place.start + slice.rows.start * width, place.start + slice.rows.end * width);
        let shared = start.max(piece.start)..end.min(piece.end);
        (own_bucket == bucket && shared.start < shared.end).then(|| Common {
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
