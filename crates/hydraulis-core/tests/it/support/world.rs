//! Buffers of all ranks, and the transfers between them.

use std::collections::BTreeMap;
use std::fmt;

use hydraulis_core::layout::place;
use hydraulis_core::layout::{
    BucketTransfer, Exchange, LocalSlice, OptimizerShards, Parameter, ParameterTable, Position, Segment, local_slices,
    strategy_positions, transfer,
};
use hydraulis_core::spec::{self, CheckpointingKind, Cluster, LayerSplit, Scheme};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::arbitrary::any_case;

/// A model of four to seven layers with up to twelve parameters; some are tied, some used by several layer groups, and
/// each is split at any row, in units, or not at all.
pub(crate) fn table() -> impl Strategy<Value = ParameterTable> {
    let parameter = (1..14_u64, 1..5_u64, 0..3_u8, any::<prop::sample::Index>(), 0..6_u8, prop::bool::weighted(0.8));
    let head_layers = prop_oneof![Just(0.0), 0.0..4.0_f64];
    (4..=7_u32, head_layers, vec(parameter, 1..12)).prop_map(|(layers, head_layers, inputs)| {
        let parameters =
            inputs.into_iter().enumerate().map(|(index, (units, row_elements, cut, place, kind, trained))| {
                let (rows, units) = [(units, units), (3 * units, units), (units, 1)][usize::from(cut)];
                let layer_group = u32::try_from(place.index(layers as usize + 2)).unwrap();
                let layer_groups = match kind {
                    0 => vec![0, layers + 1],
                    1 => (layer_group / 2..=layer_group).collect(),
                    _ => vec![layer_group],
                };
                Parameter { name: format!("parameter {index}"), rows, row_elements, units, layer_groups, trained }
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

/// Every rank's transfers, its local slices, and the layout of the optimizer shards.
pub(crate) struct World {
    pub(crate) table: ParameterTable,
    pub(crate) positions: Vec<Option<Position>>,
    pub(crate) shards: OptimizerShards,
    pub(crate) local: Vec<Vec<LocalSlice>>,
    pub(crate) transfers: Vec<Vec<BucketTransfer>>,
}

impl World {
    pub(crate) fn new(table: ParameterTable, positions: &[Option<Position>], gpus_per_node: u32) -> World {
        let ranks = u32::try_from(positions.len()).unwrap();
        World::at_owners(table, positions, &Cluster::new(ranks, gpus_per_node).unwrap(), &[])
    }

    /// A world with the optimizer shards of a run with these schemes.
    pub(crate) fn at_owners(
        table: ParameterTable,
        positions: &[Option<Position>],
        cluster: &Cluster,
        schemes: &[Scheme],
    ) -> World {
        let (ranks, shards) = (cluster.gpus(), OptimizerShards::new(&table, cluster, schemes).unwrap());
        let local = positions.iter().map(|at| at.map_or(Vec::new(), |at| local_slices(&table, at).unwrap()));
        let transfers = (0..ranks).map(|rank| transfer(&table, &shards, positions, rank).unwrap());
        World { local: local.collect(), transfers: transfers.collect(), positions: positions.to_vec(), shards, table }
    }

    pub(crate) fn ranks(&self) -> std::ops::Range<usize> {
        0..self.local.len()
    }

    pub(crate) fn elements_of(&self, slice: &LocalSlice) -> std::ops::Range<usize> {
        let width = self.table.parameters()[slice.parameter].row_elements;
        at(slice.rows.start * width)..at(slice.rows.end * width)
    }

    /// A buffer for each rank in the order of its slices, filled with `value(rank, parameter, element)`.
    pub(crate) fn strategy_buffers(&self, value: impl Fn(usize, usize, usize) -> f64) -> Vec<Vec<f64>> {
        let buffer = |rank: usize| {
            let mut buffer = Vec::new();
            for slice in &self.local[rank] {
                assert_eq!(buffer.len(), at(slice.offset), "slices are packed");
                buffer.extend(self.elements_of(slice).map(|element| value(rank, slice.parameter, element)));
            }
            buffer
        };
        self.ranks().map(buffer).collect()
    }

    /// The optimizer shards' buffers, which contain every element once, filled with `value(parameter, element)`.
    pub(crate) fn shard_buffers(&self, value: impl Fn(usize, usize) -> f64) -> Vec<Vec<f64>> {
        let buffer = |rank: usize| {
            let mut buffer = Vec::new();
            for slice in self.shards.slices(&self.table, rank as u64) {
                assert_eq!(buffer.len(), at(slice.offset), "slices are packed");
                buffer.extend(slice.elements.map(|element| value(slice.parameter, at(element))));
            }
            assert_eq!(buffer.len(), at(self.shards.offset(self.table.buckets(), rank as u64)));
            buffer
        };
        self.ranks().map(buffer).collect()
    }

    /// Every rank's relay buffer for a bucket's sums, used if there are several nodes.
    pub(crate) fn relays(&self, bucket: usize) -> Vec<Vec<f64>> {
        self.transfers.iter().map(|buckets| vec![0.0; at(buckets[bucket].relayed)]).collect()
    }

    /// The exchanges of a bucket inside nodes, and between them.
    pub(crate) fn inside(&self, bucket: usize) -> Vec<&Exchange> {
        self.transfers.iter().map(|buckets| &buckets[bucket].inside).collect()
    }

    pub(crate) fn between(&self, bucket: usize) -> Vec<&Exchange> {
        self.transfers.iter().filter_map(|buckets| buckets[bucket].between.as_ref()).collect()
    }

    /// The peers of a rank in its node, or on its rail.
    pub(crate) fn node_of(&self, rank: usize) -> Vec<usize> {
        self.shards.node_of(rank as u64).map(at).collect()
    }

    pub(crate) fn rail_of(&self, rank: usize) -> Vec<usize> {
        self.shards.rail_of(rank as u64).map(at).collect()
    }

    /// For each element of a bucket in a rank's local shard: rank, offset there, owner, offset there; by way of relays.
    pub(crate) fn ways(&self, bucket: usize) -> Vec<(usize, usize, usize, usize)> {
        let inside = pairs(&self.inside(bucket), |rank| self.node_of(rank));
        if self.shards.nodes() == 1 {
            return inside;
        }
        let between = pairs(&self.between(bucket), |rank| self.rail_of(rank));
        let on: BTreeMap<(usize, usize), (usize, usize)> = between
            .into_iter()
            .map(|(relay, place, shards, at_owners)| ((relay, place), (shards, at_owners)))
            .collect();
        let whole = |(member, place, relay, relayed)| {
            let (shards, at_owners) = on[&(relay, relayed)];
            (member, place, shards, at_owners)
        };
        inside.into_iter().map(whole).collect()
    }
}

/// Each exchanged element: sender, offset there, receiver, offset there, in the direction of gradients, by receiver and
/// sender.
pub(crate) fn pairs(exchanges: &[&Exchange], peers: impl Fn(usize) -> Vec<usize>) -> Vec<(usize, usize, usize, usize)> {
    let part = |segments: &[Segment], counts: &[u64], peer: usize| {
        let before = at(counts[..peer].iter().sum());
        elements(segments).skip(before).take(at(counts[peer])).collect::<Vec<_>>()
    };
    let mut all = Vec::new();
    for (receiver, exchange) in exchanges.iter().enumerate() {
        for (number, &sender) in peers(receiver).iter().enumerate() {
            let place = peers(sender).iter().position(|&peer| peer == receiver).unwrap();
            let from = part(&exchanges[sender].near, &exchanges[sender].near_counts, place);
            let to = part(&exchange.far, &exchange.far_counts, number);
            assert_eq!(from.len(), to.len(), "both sides of an exchange expect the same");
            all.extend(from.into_iter().zip(to).map(|(from, to)| (sender, from, receiver, to)));
        }
    }
    all
}

/// A number that is unique to this element of this rank, and whose sums depend on their order.
#[expect(clippy::cast_precision_loss, reason = "small numbers")]
pub(crate) fn mark(rank: usize, parameter: usize, element: usize) -> f64 {
    1.0 / (3.0 + (rank * 10_007 + parameter * 211 + element) as f64)
}

/// Random replicas with work; the others are idle.
pub(crate) fn world() -> impl Strategy<Value = World> {
    prop_oneof![2 => in_order(), 1 => nested_world()]
}

/// A world of a random strategy, or of the only scheme of the optimizer shards: local slices are in the order of their
/// owners.
pub(crate) fn in_order() -> impl Strategy<Value = World> {
    prop_oneof![
        mixed(),
        (alone(), table(), vec(any::<bool>(), 8)).prop_map(|(alone, table, at_work)| {
            let replicas = alone.positions();
            let size = at(alone.scheme.ranks());
            let is_at_work = |rank: usize| at_work[rank / size % at_work.len()];
            let positions: Vec<_> =
                replicas.into_iter().enumerate().map(|(rank, one)| one.filter(|_| is_at_work(rank))).collect();
            World::at_owners(table, &positions, &alone.cluster, &[alone.scheme])
        })
    ]
}

/// A scheme whose replicas take every rank of a cluster.
#[derive(Clone, Debug)]
pub(crate) struct Alone {
    pub(crate) scheme: Scheme,
    pub(crate) cluster: Cluster,
}

impl Alone {
    /// The position of each rank if all replicas have work.
    pub(crate) fn positions(&self) -> Vec<Option<Position>> {
        let size = at(self.scheme.ranks());
        (0..self.cluster.gpus() as usize).map(|rank| Some(position(self.scheme, rank % size))).collect()
    }
}

/// Replicas of one stage that take every rank of a cluster, whose tensor degrees divide each other.
#[derive(Clone, Debug)]
pub(crate) struct Nested {
    replicas: spec::Strategy,
    /// Schemes of the run.
    schemes: Vec<Scheme>,
    pub(crate) cluster: Cluster,
}

impl Nested {
    /// The position of each rank if all replicas have work.
    pub(crate) fn positions(&self) -> Vec<Option<Position>> {
        strategy_positions(&self.replicas, &self.cluster).unwrap()
    }

    /// A world with ranks at these positions. For each parameter, up to eight tensor ranks share units evenly, or hold
    /// copies evenly: a model with other heads is refused.
    pub(crate) fn world(&self, table: &ParameterTable, positions: &[Option<Position>]) -> World {
        let parameters = table.parameters().iter().map(|one| {
            let units = if one.units < 8 { one.units.next_power_of_two() } else { one.units };
            Parameter { rows: one.rows / one.units * units, units, ..one.clone() }
        });
        let table = ParameterTable::new(parameters.collect(), table.split().clone()).unwrap();
        World::at_owners(table, positions, &self.cluster, &self.schemes)
    }
}

/// Replicas on 16 ranks, of at most 8 each; the run may have schemes without a replica here.
pub(crate) fn nested() -> impl Strategy<Value = Nested> {
    let node = prop_oneof![Just(8), Just(16)];
    let replicas = vec((0..4_u32, 0..4_u32, any::<bool>()), 1..8);
    let others = vec((0..4_u32, 0..3_u32), 0..3);
    (node, replicas, others).prop_map(|(node, degrees, others)| {
        let of_degrees = |(tp, cp): (u32, u32)| Scheme::new(1 << tp, 1 << cp.min(3 - tp), 1).unwrap();
        let mut replicas: Vec<Scheme> = Vec::new();
        let mut free = 16;
        for (tp, cp, is_full) in degrees.into_iter().chain(std::iter::repeat_n((0, 0, false), 16)) {
            let scheme = of_degrees((tp, cp));
            if scheme.ranks() <= free {
                free -= scheme.ranks();
                replicas.push(if is_full { scheme.with_checkpointing(CheckpointingKind::Full) } else { scheme });
            }
        }
        let schemes = replicas.iter().copied().chain(others.into_iter().map(of_degrees)).collect();
        let replicas = spec::Strategy::new(replicas).unwrap();
        Nested { replicas, schemes, cluster: Cluster::new(16, node).unwrap() }
    })
}

/// A world whose optimizer shards serve schemes with local shards that are parts of one another.
pub(crate) fn nested_world() -> impl Strategy<Value = World> {
    (nested(), table(), vec(any::<bool>(), 16)).prop_map(|(nested, table, at_work)| {
        let mut positions = nested.positions();
        let replicas = place(&nested.replicas, &nested.cluster).unwrap();
        let idle = replicas.into_iter().zip(at_work).filter(|(_, at_work)| !at_work);
        idle.flat_map(|(ranks, _)| ranks).for_each(|rank| positions[rank as usize] = None);
        nested.world(&table, &positions)
    })
}

/// A cluster of at most 24 ranks, in nodes of a part of a stage's ranks, of all of them, or of several stages.
pub(crate) fn alone() -> impl Strategy<Value = Alone> {
    (1..=4_u16, 1..=3_u16, 1..=4_u16, 1..=4_u32, 1..=4_u32, any::<bool>()).prop_filter_map(
        "a node is whole layer_groups or a part of one",
        |(tp, cp, pp, replicas, parts, is_part)| {
            let scheme = Scheme::new(tp, cp, pp).unwrap();
            let (layer_group, gpus) = (scheme.stage_group_ranks(), u32::try_from(scheme.ranks()).unwrap() * replicas);
            let node = if is_part {
                layer_group.is_multiple_of(parts).then(|| layer_group / parts)?
            } else {
                layer_group * parts
            };
            let cluster = (gpus <= 24 && gpus.is_multiple_of(node)).then(|| Cluster::new(gpus, node).unwrap());
            cluster.map(|cluster| Alone { scheme, cluster })
        },
    )
}

fn mixed() -> impl Strategy<Value = World> {
    (any_case(), table(), vec(any::<bool>(), 8)).prop_map(|(case, table, at_work)| {
        let largest =
            case.strategies.iter().max_by_key(|strategy| (strategy.schemes().len(), strategy.ranks())).unwrap();
        let mut positions = vec![None; case.cluster.gpus() as usize];
        let replicas = largest.schemes().iter().zip(place(largest, &case.cluster).unwrap());
        for ((scheme, ranks), at_work) in replicas.zip(at_work) {
            for (index, rank) in ranks.into_iter().enumerate() {
                positions[rank as usize] = at_work.then(|| position(*scheme, index));
            }
        }
        World::new(table, &positions, case.cluster.gpus_per_node())
    })
}

/// The position of the rank at this index of a replica's list: stage by stage, context rank by context rank, in tensor
/// order.
pub(crate) fn position(scheme: Scheme, index: usize) -> Position {
    let index = u16::try_from(index).unwrap();
    let (tp, cp) = (scheme.tp(), scheme.cp());
    Position::new(scheme, index / (tp * cp), index / tp % cp, index % tp).unwrap()
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}\n{:?}", self.table, self.local)
    }
}
