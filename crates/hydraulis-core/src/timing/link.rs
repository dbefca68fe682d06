//! The time of an iteration's transfers on the links of a cluster.
//!
//! The model:
//!
//! - The links of a node send and receive at the same time, each way at one rate. Bytes between nodes count once for each
//!   node that holds them ([`bucket_volumes`]). The links of a node may be slower than those of the others by a stated
//!   factor ([`Link::with_node_slowdowns`]).
//! - Inside a node each GPU sends and receives at one rate. It receives all elements that it holds and does not own, while
//!   links between nodes work too. It sends no more than that, since the sending is split evenly.
//! - A rank has one message for each other rank of its node and for each other node, in every bucket, one after another.
//! - Buckets follow each other in one order on all ranks. Each begins when the one before is complete, and takes as long
//!   as its busiest node or GPU. Collectives of one group run in this way. Buckets of different stages, which different
//!   nodes hold, could overlap; the model therefore counts too much rather than too little.
//!
//! Frozen parameters move only where parameters are sharded: each gather of a layer group has an exchange of its trained
//! parameters and one of its frozen ones.
//!
//! A [`StepTimeline`](crate::timing::StepTimeline) computes the exposed part of these times.

use std::ops::Range;

use crate::cost::{ClassCost, CostProfile};
use crate::error::{LinkError, Result};
use crate::layout::{
    BucketVolume, OptimizerShards, ParameterTable, Position, bucket_volumes, least_volumes, stage_layer_groups,
    strategy_positions,
};
use crate::spec::{Cluster, LayerSplit, LinkRates, Scheme, Strategy};
use crate::timing::rounds::contributing;
use crate::timing::{Exposure, Rounds, Traffic, TransferTimes};
use crate::units::Millis;

/// Bytes of float64.
const MOST_ELEMENT_BYTES: u32 = 8;

/// Limit of a node's slowdown, as for the rate of a rank.
const MOST_SLOWDOWN: f64 = 1e3;

/// The links of a cluster, and the traffic on them.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    table: ParameterTable,
    /// The table without frozen parameters.
    trained: ParameterTable,
    traffic: Traffic,
    /// Factor of the transfer times of each node's links; empty if all are 1.
    node_slowdowns: Vec<f64>,
}

impl Link {
    /// Links for the parameters of `table`. Frozen ones count where parameters are sharded; otherwise they move only when
    /// ranks change their positions.
    ///
    /// Refused with `argument_invalid` if rates are beyond their limits, or if an element has more than 8 bytes.
    pub fn new(table: ParameterTable, traffic: Traffic) -> Result<Link> {
        traffic.rates.checked()?;
        for (field, value) in [("parameter_bytes", traffic.parameter_bytes), ("gradient_bytes", traffic.gradient_bytes)]
        {
            if value > MOST_ELEMENT_BYTES {
                return Err(LinkError::ElementBytes { field, value, limit: MOST_ELEMENT_BYTES }.into());
            }
        }
        let trained = table.clone().without_frozen();
        Ok(Link { table, trained, traffic, node_slowdowns: Vec::new() })
    }

    /// The same links with a factor for each node: the time that bytes take between it and other nodes, relative to the
    /// links' rate. None at all for nodes of equal links.
    ///
    /// Refused with `argument_invalid` if a factor is below 1 or above 1,000. Another number of factors than of nodes is
    /// refused by the methods that know the cluster.
    pub fn with_node_slowdowns(self, node_slowdowns: Vec<f64>) -> Result<Link> {
        if let Some(node) = node_slowdowns.iter().position(|slowdown| !(1.0..=MOST_SLOWDOWN).contains(slowdown)) {
            let value = node_slowdowns[node].to_string();
            return Err(LinkError::NodeSlowdown { node, value, limit: MOST_SLOWDOWN }.into());
        }
        let is_even = node_slowdowns.iter().all(|slowdown| slowdown.total_cmp(&1.0).is_eq());
        Ok(Link { node_slowdowns: if is_even { Vec::new() } else { node_slowdowns }, ..self })
    }

    /// Links for the profile's model, in the types in which training moves it.
    ///
    /// Refused with `profile_invalid` if the profile does not state its model, and as [`Link::new`].
    pub fn of_profile(profile: &CostProfile, rates: LinkRates) -> Result<Link> {
        let table = ParameterTable::from_model(profile.travelling_model()?)?;
        let dtype = profile.travelling_dtype();
        let bytes = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        Link::new(
            table,
            Traffic { rates, parameter_bytes: bytes(dtype.bytes()), gradient_bytes: bytes(dtype.wide_bytes()) },
        )
    }

    /// The parameters of the model.
    pub fn table(&self) -> &ParameterTable {
        &self.table
    }

    /// The traffic on the links, and their rates.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// The factor of each node's transfer times; none if all nodes have equal links.
    pub fn node_slowdowns(&self) -> &[f64] {
        &self.node_slowdowns
    }

    /// Refuses a scheme with more stages than the model has layers, with `scheme_model_mismatch`.
    pub fn admits(&self, scheme: Scheme) -> Result<()> {
        stage_layer_groups(self.table.split(), scheme, 0).map(drop)
    }

    /// The assignment of the model's layers to stages.
    pub fn split(&self) -> &LayerSplit {
        self.table.split()
    }

    /// The transfer times of an iteration in which each rank of the cluster has its position, which is of one of the
    /// owner layout's schemes. `rounds` is for sharded gradients or parameters.
    ///
    /// Refused if the positions are not those of all ranks, or of a pipeline with more stages than the model has layers
    /// for, or if slowdowns are not those of all nodes. A caller with many iterations of one run builds the owner layout
    /// once, as a [`RunLink`](crate::timing::RunLink).
    pub fn transfer_times(
        &self,
        positions: &[Option<Position>],
        rounds: Option<Rounds<'_>>,
        cluster: &Cluster,
        schemes: &[Scheme],
    ) -> Result<TransferTimes> {
        self.times_from(&OptimizerShards::new(&self.table, cluster, schemes)?, positions, rounds)
    }

    fn expect_nodes(&self, nodes: u64) -> Result<()> {
        let given = self.node_slowdowns.len();
        if given == 0 || given as u64 == nodes { Ok(()) } else { Err(LinkError::NodeCount { given, nodes }.into()) }
    }

    /// The same for an existing owner layout.
    fn times_from(
        &self,
        shards: &OptimizerShards,
        positions: &[Option<Position>],
        rounds: Option<Rounds<'_>>,
    ) -> Result<TransferTimes> {
        self.expect_nodes(shards.nodes())?;
        let volumes = |table, positions: &[Option<Position>]| bucket_volumes(table, shards, positions);
        let Some(Rounds { micro_batches, has_gathers }) = rounds else {
            return self.once(shards, &volumes(&self.trained, positions)?, self.traffic);
        };
        let number = micro_batches.iter().copied().max().unwrap_or_default();
        let mut times = TransferTimes::default();
        let mut reductions: Vec<Vec<Millis>> = Vec::new();
        let mut last: Option<(Vec<Option<Position>>, TransferTimes)> = None;
        for round in 0..number.max(1) {
            // Whole parameters come once, to the positions of the last round.
            let moves_parameters = has_gathers || round + 1 >= number;
            let positions = contributing(positions, micro_batches, round, number);
            let known = last.take().filter(|(known, _)| *known == positions && (has_gathers || !moves_parameters));
            let of_round = if let Some((_, of_round)) = known {
                of_round
            } else if has_gathers {
                self.gathered(shards, &volumes(&self.table, &positions)?)?
            } else {
                let parameter_bytes = if moves_parameters { self.traffic.parameter_bytes } else { 0 };
                let traffic = Traffic { parameter_bytes, ..self.traffic };
                self.once(shards, &volumes(&self.trained, &positions)?, traffic)?
            };
            times.moved_bytes = times.moved_bytes.saturating_add(of_round.moved_bytes);
            times.gathers.extend(has_gathers.then(|| of_round.parameters.clone()));
            reductions.push(of_round.gradients.clone());
            last = Some((positions, of_round));
        }
        times.gradients = reductions.pop().unwrap_or_default();
        times.earlier_rounds = Some(reductions);
        if has_gathers {
            times.gathered_again = self.gathered_again();
        }
        let gathered_once = last.filter(|_| !has_gathers).map(|(_, of_round)| of_round.parameters);
        times.parameters = gathered_once.unwrap_or_else(|| vec![Millis::ZERO; times.gradients.len()]);
        Ok(times)
    }

    /// The times of a round of sharded parameters, whose gathers have the frozen parameters of each layer group too; its
    /// bytes count the gathers of forward and backward.
    fn gathered(&self, shards: &OptimizerShards, volumes: &[BucketVolume]) -> Result<TransferTimes> {
        let gathers_alone = Traffic { gradient_bytes: 0, ..self.traffic };
        let (trained, frozen) = volumes.split_at(self.trained.buckets());
        let mut times = self.once(shards, trained, self.traffic)?;
        let frozen_times = self.once(shards, frozen, gathers_alone)?;
        times.parameters.iter_mut().zip(frozen_times.parameters).for_each(|(own, ms)| *own += ms);
        times.moved_bytes = times.moved_bytes.saturating_add(frozen_times.moved_bytes);
        for buckets in [trained, frozen].into_iter().filter(|buckets| !buckets.is_empty()) {
            let again = self.once(shards, &buckets[self.gathered_again()], gathers_alone)?;
            times.moved_bytes = times.moved_bytes.saturating_add(again.moved_bytes);
        }
        Ok(times)
    }

    /// The times of exchanges of these volumes.
    fn once(&self, shards: &OptimizerShards, volumes: &[BucketVolume], traffic: Traffic) -> Result<TransferTimes> {
        TransferTimes::new(volumes, traffic, shards.messages(), &self.node_slowdowns)
    }

    /// The layer groups that a backward gathers again: not the last two, which the forward leaves, and not the embedding,
    /// whose backward needs no values. A backward ends at the first layer group with a trained parameter.
    fn gathered_again(&self) -> Range<usize> {
        let first = self.trained.parameters().first().map_or(0, |parameter| parameter.layer_groups[0] as usize);
        let end = self.trained.buckets().saturating_sub(2);
        first.clamp(1, end.max(1))..end.max(1)
    }
}

/// A link with the owner layout of one run, which all iterations of the run share: building the layout takes longer
/// than counting an iteration's transfers.
#[derive(Clone, Debug, PartialEq)]
pub struct RunLink {
    link: Link,
    shards: OptimizerShards,
}

impl RunLink {
    /// The link of a run on `cluster` whose replicas have only these schemes; refused as [`OptimizerShards::new`].
    pub fn new(link: Link, cluster: &Cluster, schemes: &[Scheme]) -> Result<RunLink> {
        let shards = OptimizerShards::new(link.table(), cluster, schemes)?;
        link.expect_nodes(shards.nodes())?;
        Ok(RunLink { link, shards })
    }

    /// The link alone.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// The exposure of each stage to the least transfers of an iteration in which a replica of this class has sequences, at
    /// any place of the cluster and with any other replicas. Refused as [`Link::admits`].
    pub fn least_exposures(&self, class: &ClassCost, cluster: &Cluster) -> Result<Option<Vec<Exposure>>> {
        let (scheme, times) = (class.scheme(), self.least_times(class.scheme(), cluster)?);
        let of_stage = |(stage, &multiplier): (u16, &f64)| {
            let groups = stage_layer_groups(self.link.split(), scheme, stage)?;
            let buckets = *groups.start() as usize..*groups.end() as usize + 1;
            Ok(Exposure::of_stage(&times, buckets, multiplier, class.forward_share()))
        };
        (0..).zip(class.stage_multipliers()).map(of_stage).collect()
    }

    fn least_times(&self, scheme: Scheme, cluster: &Cluster) -> Result<TransferTimes> {
        let positions = strategy_positions(&Strategy::new(vec![scheme])?, cluster)?;
        let volumes = least_volumes(&self.link.trained, &self.shards, &positions)?;
        TransferTimes::new(&volumes, self.link.traffic, self.shards.messages(), &[])
    }

    /// The transfer times of an iteration in which each rank has its position; see [`Link::transfer_times`].
    pub fn transfer_times(&self, positions: &[Option<Position>], rounds: Option<Rounds<'_>>) -> Result<TransferTimes> {
        self.link.times_from(&self.shards, positions, rounds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Parameter, strategy_positions};

    const SLOW_RATES: LinkRates = LinkRates { gigabytes_per_s: 1.0, gpu_gigabytes_per_s: 1e3, message_us: 0.0 };
    const SLOW_NODES: Traffic = Traffic { rates: SLOW_RATES, parameter_bytes: 2, gradient_bytes: 4 };

    fn at(rates: LinkRates) -> Traffic {
        Traffic { rates, ..SLOW_NODES }
    }

    /// One matrix of 8 rows of 1,000 in each of two layers, on two nodes of two ranks.
    fn link(traffic: Traffic) -> Result<Link> {
        let matrix = |layer_group| Parameter {
            name: "matrix".into(),
            rows: 8,
            row_elements: 1_000,
            units: 8,
            layer_groups: vec![layer_group],
            trained: true,
        };
        Link::new(ParameterTable::new(vec![matrix(1), matrix(2)], LayerSplit::even(2)).unwrap(), traffic)
    }

    fn times(strategy: &str, traffic: Traffic) -> TransferTimes {
        let cluster = Cluster::new(4, 2).unwrap();
        let positions = strategy_positions(&strategy.parse().unwrap(), &cluster).unwrap();
        link(traffic).unwrap().transfer_times(&positions, None, &cluster, &[]).unwrap()
    }

    fn is_close(times: &[Millis], expected: [f64; 4]) -> bool {
        times.len() == 4 && times.iter().zip(expected).all(|(ms, expected)| (ms.0 - expected).abs() < 1e-12)
    }

    /// Each node owns half of a bucket's 8,000 elements, which the other holds; at a million bytes a ms.
    #[test]
    fn traffic_between_nodes_takes_its_time() {
        let halves = times("2x<tp2>", SLOW_NODES);
        assert!(is_close(&halves.parameters, [0.0, 0.008, 0.008, 0.0]), "{halves:?}");
        assert!(is_close(&halves.gradients, [0.0, 0.016, 0.016, 0.0]), "{halves:?}");
        assert!(halves.total().is_close(Millis(0.048)));
        // 4,000 elements of each of two buckets, to each of two nodes, six bytes both ways.
        assert_eq!(halves.moved_bytes, 96_000);
        // Elements cross once for each node, not for each rank.
        assert_eq!(times("4x<1>", SLOW_NODES), halves);
        // One node holds everything: half of it comes from the other, which holds nothing.
        let one_sided = times("1x<tp2>", SLOW_NODES);
        assert!(is_close(&one_sided.parameters, [0.0, 0.008, 0.008, 0.0]), "{one_sided:?}");
        assert_eq!(one_sided.moved_bytes, 48_000);
        // Each node holds one layer, and owns half of it.
        assert_eq!(times("1x<tp2,pp2>", SLOW_NODES), one_sided);
    }

    /// A rank of <1> holds 8,000 elements and owns 2,000; one of <tp2> holds half as many, its own share among them.
    #[test]
    fn a_slower_receiving_gpu_sets_the_time() {
        let slow_gpus = at(LinkRates { gigabytes_per_s: 1e3, gpu_gigabytes_per_s: 1.0, ..SLOW_RATES });
        assert!(is_close(&times("4x<1>", slow_gpus).parameters, [0.0, 0.012, 0.012, 0.0]));
        assert!(is_close(&times("2x<tp2>", slow_gpus).parameters, [0.0, 0.004, 0.004, 0.0]));
    }

    /// One matrix of 8,000 elements in each of two buckets, on two nodes.
    #[test]
    fn a_node_with_slow_links_holds_up_the_buckets_that_it_has_most_of() {
        let cluster = Cluster::new(4, 2).unwrap();
        let with = |strategy: &str, slowdowns: &[f64]| {
            let positions = strategy_positions(&strategy.parse().unwrap(), &cluster).unwrap();
            let link = link(SLOW_NODES).unwrap().with_node_slowdowns(slowdowns.to_vec()).unwrap();
            link.transfer_times(&positions, None, &cluster, &[])
        };
        // Both nodes send and receive half of a bucket.
        let halves = with("2x<tp2>", &[1.0, 3.0]).unwrap();
        assert!(is_close(&halves.parameters, [0.0, 0.024, 0.024, 0.0]), "{halves:?}");
        assert!(is_close(&halves.gradients, [0.0, 0.048, 0.048, 0.0]), "{halves:?}");
        assert_eq!(with("2x<tp2>", &[3.0, 1.0]).unwrap(), halves);
        // Equal links are stated by ones, or not at all.
        assert_eq!(with("2x<tp2>", &[1.0, 1.0]).unwrap(), times("2x<tp2>", SLOW_NODES));
        let refused = with("2x<tp2>", &[1.0, 1.0, 2.0]).unwrap_err();
        assert_eq!(refused.code(), "argument_invalid");
        assert!(refused.to_string().contains("3 slowdowns of links for 2 nodes"), "{refused}");
        for bad in [0.5, 0.0, -1.0, 1001.0, f64::NAN, f64::INFINITY] {
            let refused = link(SLOW_NODES).unwrap().with_node_slowdowns(vec![1.0, bad]).unwrap_err();
            assert_eq!(refused.code(), "argument_invalid");
            assert!(refused.to_string().contains("links of node 1"), "{refused}");
        }
    }

    /// One other rank in the node, one other node.
    #[test]
    fn each_message_takes_its_time_in_each_bucket_that_moves() {
        let messages = at(LinkRates { message_us: 3.0, ..SLOW_RATES });
        assert!(is_close(&times("2x<tp2>", messages).parameters, [0.0, 0.014, 0.014, 0.0]));
    }

    #[test]
    fn a_single_rank_moves_nothing() {
        let cluster = Cluster::new(1, 8).unwrap();
        let positions = strategy_positions(&"1x<1>".parse().unwrap(), &cluster).unwrap();
        let traffic = at(LinkRates { message_us: 3.0, ..SLOW_RATES });
        let times = link(traffic).unwrap().transfer_times(&positions, None, &cluster, &[]).unwrap();
        assert_eq!((times.total(), times.moved_bytes), (Millis::ZERO, 0));
    }

    /// Four layers on two nodes of two ranks, each with a matrix of 8,000 elements; those of the first two are frozen, and so is
    /// a second matrix of the last.
    #[test]
    fn gathers_of_sharded_parameters_bring_frozen_ones_too() {
        let matrix = |layer_group, trained| Parameter {
            name: "matrix".into(),
            rows: 8,
            row_elements: 1_000,
            units: 8,
            layer_groups: vec![layer_group],
            trained,
        };
        let rows = [(1, false), (2, false), (3, true), (4, true), (4, false)];
        let rows: Vec<Parameter> =
            rows.into_iter().map(|(layer_group, trained)| matrix(layer_group, trained)).collect();
        let table = ParameterTable::new(rows, LayerSplit::even(4)).unwrap();
        let link = Link::new(table.clone(), SLOW_NODES).unwrap();
        let cluster = Cluster::new(4, 2).unwrap();
        let positions = strategy_positions(&"4x<1>".parse().unwrap(), &cluster).unwrap();
        let times_on = |link: &Link, has_gathers| {
            let rounds = Rounds { micro_batches: &[1, 1, 1, 1], has_gathers };
            link.transfer_times(&positions, Some(rounds), &cluster, &[]).unwrap()
        };
        let times = |has_gathers| times_on(&link, has_gathers);
        let whole = times(false);
        let close = |times: &[Millis], expected: [f64; 6]| {
            times.iter().zip(expected).all(|(ms, expected)| (ms.0 - expected).abs() < 1e-12) && times.len() == 6
        };
        // Half of a matrix, in two bytes, at a million bytes a ms.
        assert!(close(&whole.parameters, [0.0, 0.0, 0.0, 0.008, 0.008, 0.0]), "{whole:?}");
        assert_eq!(whole.moved_bytes, 2 * 4_000 * 2 * (2 + 4));
        let sharded = times(true);
        assert!(close(&sharded.gathers[0], [0.0, 0.008, 0.008, 0.008, 0.016, 0.0]), "{sharded:?}");
        assert!(close(&sharded.gradients, [0.0, 0.0, 0.0, 0.016, 0.016, 0.0]), "{sharded:?}");
        // Backward ends at layer 3, and the forward has left the last layer and the head.
        assert_eq!(sharded.gathered_again, 3..4);
        // Five matrices in forward and one in backward, and two gradients.
        assert_eq!(sharded.moved_bytes, 2 * 4_000 * (2 * 6 + 4 * 2));
        assert!(sharded.total().is_close(Millis(6.0 * 0.008 + 2.0 * 0.016)), "{sharded:?}");
        // Two messages in each of the two exchanges of the last layer.
        let messages = at(LinkRates { message_us: 3.0, ..SLOW_RATES });
        let late = times_on(&Link::new(table, messages).unwrap(), true);
        assert!(close(&late.gathers[0], [0.0, 0.014, 0.014, 0.014, 0.028, 0.0]), "{late:?}");
    }

    #[test]
    fn an_invalid_rate_is_refused() {
        for rate in [0.0, -1.0, 1e-300, f64::NAN, f64::INFINITY] {
            let nodes = at(LinkRates { gigabytes_per_s: rate, ..SLOW_RATES });
            let gpus = at(LinkRates { gpu_gigabytes_per_s: rate, ..SLOW_RATES });
            assert_eq!(link(nodes).unwrap_err().code(), "argument_invalid");
            assert_eq!(link(gpus).unwrap_err().code(), "argument_invalid");
        }
        for time in [-1.0, 1e300, f64::NAN, f64::INFINITY] {
            let traffic = at(LinkRates { message_us: time, ..SLOW_RATES });
            assert_eq!(link(traffic).unwrap_err().code(), "argument_invalid");
        }
        let wide = [Traffic { parameter_bytes: 9, ..SLOW_NODES }, Traffic { gradient_bytes: u32::MAX, ..SLOW_NODES }];
        for traffic in wide {
            assert_eq!(link(traffic).unwrap_err().code(), "argument_invalid");
        }
        let cluster = Cluster::new(4, 2).unwrap();
        let short = link(SLOW_NODES).unwrap().transfer_times(&[None; 2], None, &cluster, &[]).unwrap_err();
        assert_eq!(short.code(), "plan_mismatch");
    }
}
