//! The home layout: one home for every element, fixed for the whole run.

use std::ops::Range;

use crate::layout::ParameterTable;

/// Every bucket cut evenly over all ranks.
///
/// One contiguous piece of the whole model per rank would make a single rank the owner of a whole bucket,
/// and each bucket's transfer would wait for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    bucket_elements: Vec<u64>,
    ranks: u64,
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
    /// The home layout of a model over `ranks`.
    pub fn new(table: &ParameterTable, ranks: u32) -> Home {
        Home { bucket_elements: table.bucket_elements(), ranks: u64::from(ranks) }
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u64 {
        self.ranks
    }

    /// The elements of a bucket whose home is `rank`.
    pub fn piece(&self, bucket: usize, rank: u64) -> Range<u64> {
        let bound = |rank: u64| self.bucket_elements[bucket] * rank / self.ranks;
        bound(rank)..bound(rank + 1)
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
