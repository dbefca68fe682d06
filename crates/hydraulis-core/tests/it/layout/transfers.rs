//! Transfers of all ranks, in both directions, carried out on plain buffers.

use std::collections::BTreeSet;

use hydraulis_core::layout::{
    BucketTransfer, BucketVolume, NodeVolume, OptimizerShards, Position, Segment, bucket_volumes,
};
use hydraulis_core::spec::Cluster;
use proptest::prelude::*;

use crate::support::arbitrary::{any_case, cases};
use crate::support::world::{World, alone, at, in_order, mark, nested, nested_world, pairs, position, table, world};

/// All ranks with an element but one send it once, and it crosses once to each node with a copy but one.
fn assert_moves_what_zero_1_moves(world: &World, cluster: &Cluster) {
    let size = cluster.gpus_per_node() as usize;
    for bucket in 0..world.table.buckets() {
        let ways = world.ways(bucket);
        let owners: BTreeSet<(usize, usize)> = ways.iter().map(|&(_, _, shards, place)| (shards, place)).collect();
        let foreign = ways.iter().filter(|(member, _, shards, _)| member != shards).count();
        assert_eq!(foreign, ways.len() - owners.len());
        let nodes: BTreeSet<(usize, usize, usize)> =
            ways.iter().map(|&(member, _, shards, place)| (member / size, shards, place)).collect();
        let crossing = nodes.iter().filter(|(node, shards, _)| *node != shards / size).count();
        assert_eq!(crossing, nodes.len() - owners.len());
    }
}

/// The end of the run of adjacent segments that begins at `start`.
fn end_of_run<'a>(start: u64, segments: impl IntoIterator<Item = &'a Segment>) -> u64 {
    segments.into_iter().fold(start, |end, segment| {
        assert_eq!(segment.offset, end);
        end + segment.elements
    })
}

proptest! {
    #![proptest_config(cases(96))]

    /// The sum runs over the ranks of each node in order, then over the nodes in order.
    #[test]
    fn gradients_arrive_summed_in_the_order_of_ranks_and_nodes(world in world()) {
        let gradients = world.strategy_buffers(mark);
        let mut sums = world.shard_buffers(|_, _| 0.0);
        for bucket in 0..world.table.buckets() {
            let mut relays = world.relays(bucket);
            let targets = if world.shards.nodes() == 1 { &mut sums } else { &mut relays };
            for (member, place, target, to) in pairs(&world.inside(bucket), |rank| world.node_of(rank)) {
                targets[target][to] += gradients[member][place];
            }
            for (relay, place, shards, to) in pairs(&world.between(bucket), |rank| world.rail_of(rank)) {
                sums[shards][to] += relays[relay][place];
            }
        }
        let local = |rank: usize, parameter: usize, element: usize| {
            let slices = world.local[rank].iter();
            slices.filter(|slice| slice.parameter == parameter && world.elements_of(slice).contains(&element)).count()
        };
        let size = world.local.len() / at(world.shards.nodes());
        let expected = world.shard_buffers(|parameter, element| {
            let of_node = |ranks: std::ops::Range<usize>| {
                let all = ranks.flat_map(|rank| std::iter::repeat_n(rank, local(rank, parameter, element)));
                all.fold(0.0, |sum, rank| sum + mark(rank, parameter, element))
            };
            (0..at(world.shards.nodes())).fold(0.0, |sum, node| sum + of_node(node * size..(node + 1) * size))
        });
        prop_assert_eq!(sums, expected);
    }

    #[test]
    fn gathered_parameters_equal_the_master(world in world()) {
        let master = world.shard_buffers(|parameter, element| mark(0, parameter, element));
        let mut parameters = world.strategy_buffers(|_, _, _| f64::NAN);
        for bucket in 0..world.table.buckets() {
            let mut relays = world.relays(bucket);
            for (relay, place, shards, from) in pairs(&world.between(bucket), |rank| world.rail_of(rank)) {
                relays[relay][place] = master[shards][from];
            }
            let sources = if world.shards.nodes() == 1 { &master } else { &relays };
            for (member, place, source, from) in pairs(&world.inside(bucket), |rank| world.node_of(rank)) {
                parameters[member][place] = sources[source][from];
            }
        }
        prop_assert_eq!(parameters, world.strategy_buffers(|_, parameter, element| mark(0, parameter, element)));
    }

    /// A bucket's gradients can leave from the rank's buffer and its parameters arrive there, because segments are in
    /// the order of peers, unless peers hold parts of the rank's slices. Relayed elements are packed.
    #[test]
    fn the_elements_that_a_rank_sends_are_contiguous(ordered in in_order(), nested in nested_world()) {
        for (world, is_in_order) in [(ordered, true), (nested, false)] {
            for buckets in &world.transfers {
                let mut end = 0;
                for transfer in buckets {
                    let mut near = transfer.inside.near.clone();
                    if !is_in_order {
                        near.sort_unstable_by_key(|segment| segment.offset);
                    }
                    end = end_of_run(end, &near);
                    let relayed = transfer.between.iter().flat_map(|exchange| &exchange.near);
                    prop_assert_eq!(end_of_run(0, relayed), transfer.relayed);
                }
            }
        }
    }

    /// All ranks divide buckets by this size, though their own amounts differ.
    #[test]
    fn staging_room_is_the_most_that_a_rank_has_in_transit(world in world()) {
        for bucket in 0..world.table.buckets() {
            let on_the_way = |transfer: &BucketTransfer| {
                let exchanges = [Some(&transfer.inside), transfer.between.as_ref()];
                exchanges.into_iter().flatten().flat_map(|exchange| &exchange.far_counts).sum::<u64>() + transfer.relayed
            };
            let most = world.transfers.iter().map(|buckets| on_the_way(&buckets[bucket])).max();
            for buckets in &world.transfers {
                prop_assert_eq!(Some(buckets[bucket].room), most);
            }
        }
    }

    /// The counted traffic equals the traffic of the transfers.
    #[test]
    fn traffic_between_nodes_is_at_most_the_counted_volume(world in world()) {
        let size = world.local.len() / at(world.shards.nodes());
        let volumes = bucket_volumes(&world.table, &world.shards, &world.positions).unwrap();
        for (bucket, volume) in volumes.iter().enumerate() {
            let mut nodes = vec![NodeVolume::default(); at(world.shards.nodes())];
            for (relay, _, shards, _) in pairs(&world.between(bucket), |rank| world.rail_of(rank)) {
                if relay / size != shards / size {
                    nodes[relay / size].sent += 1;
                    nodes[shards / size].received += 1;
                }
            }
            prop_assert_eq!(&volume.nodes, &nodes);
        }
    }

    /// The count is by element, once for each node with a copy.
    #[test]
    fn nodes_exchange_the_elements_of_their_ranks_without_repeats(world in world()) {
        let node = world.local.len() / at(world.shards.nodes());
        let nodes = vec![NodeVolume::default(); at(world.shards.nodes())];
        let mut expected = vec![BucketVolume { nodes, fullest_rank: 0 }; world.table.buckets()];
        for (bucket, volume) in expected.iter_mut().enumerate() {
            let mut foreign = vec![0_u64; world.local.len()];
            let mut crossing: BTreeSet<(usize, usize, usize)> = BTreeSet::new();
            for (member, _, shards, place) in world.ways(bucket) {
                foreign[member] += u64::from(member != shards);
                if member / node != shards / node {
                    crossing.insert((member / node, shards, place));
                }
            }
            for (member, shards, _) in crossing {
                volume.nodes[member].sent += 1;
                volume.nodes[shards / node].received += 1;
            }
            volume.fullest_rank = foreign.into_iter().max().unwrap();
        }
        let volumes = bucket_volumes(&world.table, &world.shards, &world.positions).unwrap();
        prop_assert_eq!(volumes, expected);
    }

    /// The split assigns layers to stages, layer group 0 belongs to the first stage and L + 1 to the last; units are
    /// split over tensor ranks; context ranks hold equal slices.
    #[test]
    fn stages_and_tensor_ranks_have_their_own_slices(world in world()) {
        let split = world.table.split();
        let layers = split.layers();
        for (position, local) in world.positions.iter().zip(&world.local) {
            let Some(position) = *position else {
                prop_assert_eq!(local, &[]);
                continue;
            };
            let (scheme, stage, tensor_rank) = (position.scheme, position.stage(), position.tensor_rank());
            let of_stage = split.stage(scheme, stage).unwrap();
            let uses = |layer_group: u32| match layer_group {
                0 => stage == 0,
                layer_group if layer_group > layers => stage + 1 == scheme.pp(),
                layer_group => of_stage.contains(&(layer_group - 1)),
            };
            // A rank's slice of a model under <tp4> is a part of its slice under <tp2>.
            let slice = match scheme.tp() {
                4 => [0, 2, 1, 3][usize::from(tensor_rank)],
                8 => [0, 4, 2, 6, 1, 5, 3, 7][usize::from(tensor_rank)],
                _ => tensor_rank,
            };
            let part = |units: u64, slice: u16| units * u64::from(slice) / u64::from(scheme.tp());
            let expected = world.table.parameters().iter().enumerate();
            let expected = expected.filter(|(_, one)| one.layer_groups.iter().any(|&layer_group| uses(layer_group)));
            let expected = expected.map(|(index, one)| {
                let (first, end) = (part(one.units, slice), part(one.units, slice + 1));
                let unit = one.rows / one.units;
                // A rank without a unit of its own holds a copy of the unit that its range falls into.
                (index, first * unit..end.max(first + 1) * unit)
            });
            prop_assert!(local.iter().map(|slice| (slice.parameter, slice.rows.clone())).eq(expected));
        }
    }

    #[test]
    fn ranks_without_work_have_no_position(case in any_case()) {
        let plan = case.planner().plan(&case.batch()).unwrap();
        let mut expected = vec![None; case.cluster.gpus() as usize];
        for replica in plan.replicas.iter().filter(|replica| replica.sequences() > 0) {
            for (index, &rank) in replica.ranks.iter().enumerate() {
                expected[rank as usize] = Some(position(replica.scheme, index));
            }
        }
        prop_assert_eq!(plan.positions(), expected);
    }

    #[test]
    fn every_element_has_one_owner_and_shards_are_even(table in table(), nodes in 1..6_u32, size in 1..9_u32) {
        let ranks = nodes * size;
        let shards = OptimizerShards::new(&table, &Cluster::new(ranks, size).unwrap(), &[]).unwrap();
        let mut owners: Vec<Vec<usize>> = table.parameters().iter().map(|one| vec![0; at(one.elements())]).collect();
        for slice in (0..u64::from(ranks)).flat_map(|rank| shards.slices(&table, rank)) {
            owners[slice.parameter][at(slice.elements.start)..at(slice.elements.end)].iter_mut().for_each(|n| *n += 1);
        }
        prop_assert!(owners.iter().flatten().all(|&owners| owners == 1));
        for bucket in 0..table.buckets() {
            let sizes = (0..u64::from(ranks)).map(|rank| shards.piece(bucket, rank)).map(|piece| piece.end - piece.start);
            prop_assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1);
        }
    }

    /// Gradients and optimizer state therefore have the length of the trained part of the parameter buffers.
    #[test]
    fn the_trained_part_of_every_buffer_comes_first(world in world()) {
        let table = &world.table;
        let is_trained = |parameter: usize| table.parameters()[parameter].trained;
        for rank in world.ranks() {
            prop_assert!(world.local[rank].is_sorted_by_key(|slice| !is_trained(slice.parameter)));
            let own = world.shards.slices(table, rank as u64);
            prop_assert!(own.is_sorted_by_key(|slice| !is_trained(slice.parameter)));
            let trained = own.iter().filter(|slice| is_trained(slice.parameter));
            let elements: u64 = trained.map(|slice| slice.elements.end - slice.elements.start).sum();
            prop_assert_eq!(world.shards.offset(table.layer_groups(), rank as u64), elements);
        }
    }

    /// It is the size of the relay buffers.
    #[test]
    fn the_largest_relay_is_the_largest_rail_of_a_bucket(world in world()) {
        let shards = &world.shards;
        let piece = |bucket, rank| { let piece = shards.piece(bucket, rank); piece.end - piece.start };
        let rail = |bucket, rank| shards.rail_of(rank).map(|one| piece(bucket, one)).sum::<u64>();
        for buckets in [0..world.table.layer_groups(), world.table.layer_groups()..world.table.buckets()] {
            let rails = |rank| buckets.clone().map(move |bucket| rail(bucket, rank));
            let largest = (0..shards.ranks()).flat_map(rails).max().unwrap_or_default();
            prop_assert_eq!(shards.largest_relay(buckets.clone()), largest);
        }
    }

    /// If a run has a single scheme, each element's owner is a rank with a copy, even if its node has none: each other
    /// rank with a copy sends it once, as in a reduce-scatter among them. Between nodes it crosses once for each other
    /// node with a copy.
    #[test]
    fn a_single_scheme_moves_the_bytes_of_zero_1(alone in alone(), table in table()) {
        let world = World::at_owners(table, &alone.positions(), &alone.cluster, &[alone.scheme]);
        assert_moves_what_zero_1_moves(&world, &alone.cluster);
    }

    /// The same holds for replicas of one stage that differ in their context degrees or checkpointing alone, or whose
    /// tensor degrees divide each other.
    #[test]
    fn schemes_with_nested_slices_move_the_bytes_of_zero_1(nested in nested(), table in table()) {
        let positions = nested.positions();
        assert!(positions.iter().all(Option::is_some));
        assert_moves_what_zero_1_moves(&nested.world(&table, &positions), &nested.cluster);
    }

    /// Each of n ranks holds all parameters: it sends every element outside its own shard to its owner, as in a
    /// reduce-scatter.
    #[test]
    fn whole_replicas_move_the_bytes_of_a_reduce_scatter(table in table(), ranks in 1..20_usize) {
        let whole = Position::new("<1>".parse().unwrap(), 0, 0, 0).unwrap();
        let world = World::new(table, &vec![Some(whole); ranks], u32::try_from(ranks).unwrap());
        for (rank, buckets) in world.transfers.iter().enumerate() {
            for (bucket, exchange) in buckets.iter().enumerate() {
                let share = |rank: usize| world.shards.piece(bucket, rank as u64);
                let expected: Vec<u64> = world.ranks().map(share).map(|piece| piece.end - piece.start).collect();
                let exchange = &exchange.inside;
                prop_assert_eq!(&exchange.near_counts, &expected);
                prop_assert_eq!(&exchange.far_counts, &vec![expected[rank]; ranks]);
                // Each is one contiguous run: no element is packed.
                prop_assert_eq!(exchange.near.len(), expected.iter().filter(|size| **size > 0).count());
            }
        }
    }
}
