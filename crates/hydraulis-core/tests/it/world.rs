//! Buffers of all ranks, and what the transfers move between them.

use std::fmt;

use hydraulis_core::layout::{
    BucketTransfer, HeldSlice, Home, Parameter, ParameterTable, Position, Segment, held_slices, transfer,
};
use hydraulis_core::spec::{LayerSplit, Scheme};
use hydraulis_core::strategy::place;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::arbitrary::any_case;

/// A model of four to seven layers with up to twelve parameters; some are tied, some used by several blocks,
/// some cut anywhere, some in units, some not at all.
pub(crate) fn table() -> impl Strategy<Value = ParameterTable> {
    let parameter = (1..14_u64, 1..5_u64, 0..3_u8, any::<prop::sample::Index>(), 0..6_u8);
    let head_layers = prop_oneof![Just(0.0), 0.0..4.0_f64];
    (4..=7_u32, head_layers, vec(parameter, 1..12)).prop_map(|(layers, head_layers, inputs)| {
        let parameters = inputs.into_iter().enumerate().map(|(index, (units, row_elements, cut, place, kind))| {
            let (rows, units) = [(units, units), (3 * units, units), (units, 1)][usize::from(cut)];
            let block = u32::try_from(place.index(layers as usize + 2)).unwrap();
            let blocks = match kind {
                0 => vec![0, layers + 1],
                1 => (block / 2..=block).collect(),
                _ => vec![block],
            };
            Parameter { name: format!("parameter {index}"), rows, row_elements, units, blocks }
        });
        ParameterTable::new(parameters.collect(), LayerSplit::new(layers, head_layers).unwrap()).unwrap()
    })
}

/// The elements of a list of segments, one after another.
fn elements(segments: &[Segment]) -> impl Iterator<Item = usize> {
    segments.iter().flat_map(|segment| segment.offset..segment.offset + segment.elements).map(at)
}

pub(crate) fn at(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

/// Every rank's transfers, what it holds, and the layout of home.
pub(crate) struct World {
    pub(crate) table: ParameterTable,
    pub(crate) positions: Vec<Option<Position>>,
    pub(crate) home: Home,
    pub(crate) held: Vec<Vec<HeldSlice>>,
    pub(crate) transfers: Vec<Vec<BucketTransfer>>,
}

impl World {
    pub(crate) fn new(table: ParameterTable, positions: &[Option<Position>]) -> World {
        let ranks = u32::try_from(positions.len()).unwrap();
        let home = Home::new(&table, ranks);
        let held = positions.iter().map(|at| at.map_or(Vec::new(), |at| held_slices(&table, at).unwrap()));
        let transfers = (0..ranks).map(|rank| transfer(&table, &home, positions, rank).unwrap());
        World { held: held.collect(), transfers: transfers.collect(), positions: positions.to_vec(), home, table }
    }

    pub(crate) fn ranks(&self) -> std::ops::Range<usize> {
        0..self.held.len()
    }

    pub(crate) fn elements_of(&self, slice: &HeldSlice) -> std::ops::Range<usize> {
        let width = self.table.parameters()[slice.parameter].row_elements;
        at(slice.rows.start * width)..at(slice.rows.end * width)
    }

    /// A buffer for each rank, as its slices lie, filled with `value(rank, parameter, element)`.
    pub(crate) fn strategy_buffers(&self, value: impl Fn(usize, usize, usize) -> f64) -> Vec<Vec<f64>> {
        let buffer = |rank: usize| {
            let mut buffer = Vec::new();
            for slice in &self.held[rank] {
                assert_eq!(buffer.len(), at(slice.offset), "slices are packed");
                buffer.extend(self.elements_of(slice).map(|element| value(rank, slice.parameter, element)));
            }
            buffer
        };
        self.ranks().map(buffer).collect()
    }

    /// The same at home, where every element lies once.
    pub(crate) fn home_buffers(&self, value: impl Fn(usize, usize) -> f64) -> Vec<Vec<f64>> {
        let buffer = |rank: usize| {
            let mut buffer = Vec::new();
            for slice in self.home.slices(&self.table, rank as u64) {
                assert_eq!(buffer.len(), at(slice.offset), "slices are packed");
                buffer.extend(slice.elements.map(|element| value(slice.parameter, at(element))));
            }
            assert_eq!(buffer.len(), at(self.home.offset(self.table.buckets(), rank as u64)));
            buffer
        };
        self.ranks().map(buffer).collect()
    }

    /// Every bucket, holder and home.
    pub(crate) fn trades(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let pairs = self.ranks().flat_map(|holder| self.ranks().map(move |home| (holder, home)));
        pairs.flat_map(|(holder, home)| (0..self.table.buckets()).map(move |bucket| (bucket, holder, home)))
    }

    /// The elements that `holder` trades with `home` in a bucket: where they lie with the one, and the other.
    pub(crate) fn trade(&self, bucket: usize, holder: usize, home: usize) -> (Vec<usize>, Vec<usize>) {
        let (from, to) = (&self.transfers[holder][bucket], &self.transfers[home][bucket]);
        let part = |segments: &[Segment], counts: &[u64], other: usize| {
            let before = at(counts[..other].iter().sum());
            elements(segments).skip(before).take(at(counts[other])).collect::<Vec<_>>()
        };
        (part(&from.held, &from.held_counts, home), part(&to.home, &to.home_counts, holder))
    }
}

/// A number that no other element of no other rank has, and whose sums depend on their order.
#[expect(clippy::cast_precision_loss, reason = "small numbers")]
pub(crate) fn mark(rank: usize, parameter: usize, element: usize) -> f64 {
    1.0 / (3.0 + (rank * 10_007 + parameter * 211 + element) as f64)
}

/// Random replicas of a random strategy at work, the others idle.
pub(crate) fn world() -> impl Strategy<Value = World> {
    (any_case(), table(), vec(any::<bool>(), 8)).prop_map(|(case, table, at_work)| {
        let largest =
            case.strategies.iter().max_by_key(|strategy| (strategy.schemes().len(), strategy.ranks())).unwrap();
        let mut positions = vec![None; case.cluster.gpus() as usize];
        let replicas = largest.schemes().iter().zip(place(largest, case.cluster).unwrap());
        for ((scheme, ranks), at_work) in replicas.zip(at_work) {
            for (index, rank) in ranks.into_iter().enumerate() {
                positions[rank as usize] = at_work.then(|| position(*scheme, index));
            }
        }
        World::new(table, &positions)
    })
}

/// Where the rank at this place of a replica's list stands: stage by stage, context by context, in tensor order.
pub(crate) fn position(scheme: Scheme, index: usize) -> Position {
    let index = u16::try_from(index).unwrap();
    let (tp, cp) = (scheme.tp(), scheme.cp());
    Position { scheme, stage: index / (tp * cp), context_rank: index / tp % cp, tensor_rank: index % tp }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}\n{:?}", self.table, self.held)
    }
}
