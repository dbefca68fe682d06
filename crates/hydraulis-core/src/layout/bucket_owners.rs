//! The owners of one bucket's elements.

use std::ops::Range;

use crate::error::Result;
use crate::layout::local_shard::stage_layer_groups;
use crate::layout::runs::{Runs, common, length};
use crate::layout::{ParameterTable, Position};
use crate::spec::Scheme;

/// A bucket cut over the ranks, in the order of their places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BucketOwners {
    /// The canonical order, cut evenly over all ranks.
    Even {
        /// Elements of the bucket.
        elements: u64,
    },
    /// An order in which each rank owns a piece of its local shard.
    InReplicaGroups {
        /// All elements, in canonical order.
        stretches: Vec<Stretch>,
        /// Start of each place's piece, and the end of the last.
        bounds: Vec<u64>,
    },
}

/// Elements that are consecutive in both orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    /// Elements in canonical order.
    elements: Range<u64>,
    /// Their start in owner order.
    start: u64,
}

impl BucketOwners {
    pub(super) fn even(elements: u64) -> BucketOwners {
        BucketOwners::Even { elements }
    }

    /// Every bucket, with each element owned by one of the ranks that hold it, if the rank of each place has this
    /// position in a replica of `scheme`.
    pub(super) fn in_replica_groups(
        table: &ParameterTable,
        scheme: Scheme,
        by_place: &[Position],
    ) -> Result<Vec<BucketOwners>> {
        let mut buckets = Vec::with_capacity(table.buckets());
        // Buckets of trained parameters, then of frozen ones.
        let stages = (0..table.buckets())
            .step_by(table.layer_groups())
            .flat_map(|first| (0..scheme.pp()).map(move |stage| (first, stage)));
        for (first, stage) in stages {
            let groups = |slice| places_of(by_place, stage, slice);
            let groups: Vec<Vec<usize>> = (0..scheme.tp()).map(groups).collect();
            let layer_groups = stage_layer_groups(table.split(), scheme, stage)?;
            buckets.extend(
                layer_groups.map(|layer_group| among(table, first + layer_group as usize, &groups, by_place.len())),
            );
        }
        Ok(buckets)
    }

    /// Start of a place's piece; one past the last place, the end of the last piece.
    pub(super) fn bound(&self, place: u64, ranks: u64) -> u64 {
        match self {
            BucketOwners::Even { elements } => elements * place / ranks,
            BucketOwners::InReplicaGroups { bounds, .. } => bounds[usize::try_from(place).unwrap_or(usize::MAX)],
        }
    }

    /// The canonical elements' runs in owner order, in canonical order.
    pub(super) fn in_owner_order(&self, elements: Range<u64>) -> Runs {
        let BucketOwners::InReplicaGroups { stretches, .. } = self else {
            return vec![elements];
        };
        let first = stretches.partition_point(|stretch| stretch.elements.end <= elements.start);
        let touched = stretches[first..].iter().take_while(|stretch| stretch.elements.start < elements.end);
        let placed = touched.map(|stretch| {
            let part = common(&stretch.elements, &elements);
            let start = stretch.start + part.start - stretch.elements.start;
            start..start + length(&part)
        });
        placed.collect()
    }

    /// The canonical elements of a piece of the owner order, in that order.
    pub(super) fn canonical(&self, piece: Range<u64>) -> Runs {
        let BucketOwners::InReplicaGroups { stretches, .. } = self else {
            return vec![piece];
        };
        let part = |stretch: &Stretch| {
            let placed = stretch.start..stretch.start + length(&stretch.elements);
            let part = common(&placed, &piece);
            let start = stretch.elements.start + part.start - stretch.start;
            (!part.is_empty()).then_some((part.start, start..start + length(&part)))
        };
        let mut parts: Vec<(u64, Range<u64>)> = stretches.iter().filter_map(part).collect();
        parts.sort_unstable_by_key(|(start, _)| *start);
        parts.into_iter().map(|(_, elements)| elements).collect()
    }
}

fn places_of(by_place: &[Position], stage: u16, slice: u16) -> Vec<usize> {
    let is_there = |position: &Position| (position.stage(), position.tensor_slice()) == (stage, slice);
    by_place.iter().enumerate().filter(|(_, position)| is_there(position)).map(|(place, _)| place).collect()
}

/// A bucket over the places that hold each slice of its stage.
///
/// Elements in several slices belong to the first slice and to its first place. They therefore precede all other
/// elements of these slices: a rank's elements of a bucket lie in its buffer in the order of their owners, and are sent
/// as one piece.
fn among(table: &ParameterTable, bucket: usize, groups: &[Vec<usize>], places: usize) -> BucketOwners {
    let mut by_place: Vec<Runs> = vec![Vec::new(); places];
    let slices = u32::try_from(groups.len()).unwrap_or(u32::MAX);
    for (slice, groups) in (0..slices).zip(groups) {
        let owned = Owned::new(table, bucket, slice, slices);
        let cut = |number| owned.cut(number, groups.len() as u64);
        for (number, &place) in (0..).zip(groups) {
            by_place[place] = owned.between(&(cut(number)..cut(number + 1)));
        }
    }
    let mut bounds = vec![0];
    let mut stretches = Vec::new();
    let mut start = 0;
    for runs in by_place {
        for elements in runs {
            let end = start + length(&elements);
            stretches.push(Stretch { elements, start });
            start = end;
        }
        bounds.push(start);
    }
    stretches.sort_unstable_by_key(|stretch| stretch.elements.start);
    BucketOwners::InReplicaGroups { stretches, bounds }
}

/// Elements of a bucket owned by the ranks of one slice, in canonical order.
struct Owned {
    runs: Runs,
    elements: u64,
    /// Elements at the beginning that are also in later slices.
    shared: u64,
}

impl Owned {
    fn new(table: &ParameterTable, bucket: usize, slice: u32, slices: u32) -> Owned {
        let mut owned = Owned { runs: Vec::new(), elements: 0, shared: 0 };
        for index in table.of_bucket(bucket) {
            let parameter = &table.parameters()[index];
            let own = parameter.rows_of(slice, slices);
            let before = slice.checked_sub(1).map_or(0, |before| parameter.rows_of(before, slices).end);
            let first = table.place(index).1.start;
            let width = parameter.row_elements;
            let run = first + own.start.max(before) * width..first + own.end * width;
            if !run.is_empty() {
                let elements = length(&run);
                owned.elements += elements;
                owned.shared += if parameter.units < slices.into() { elements } else { 0 };
                owned.runs.push(run);
            }
        }
        owned
    }

    /// Start of a place's share among `places`: even, except that the first place has all shared elements.
    fn cut(&self, number: u64, places: u64) -> u64 {
        if number == 0 || number == places || self.shared * places <= self.elements {
            return self.elements * number / places;
        }
        self.shared + (self.elements - self.shared) * (number - 1) / (places - 1)
    }

    /// The canonical elements of a piece of these.
    fn between(&self, piece: &Range<u64>) -> Runs {
        let mut before = 0;
        let part = |run: &Range<u64>| {
            let first = before;
            before += length(run);
            let part = common(piece, &(first..before));
            (!part.is_empty()).then(|| run.start + part.start - first..run.start + part.end - first)
        };
        self.runs.iter().filter_map(part).collect()
    }
}
