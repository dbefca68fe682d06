//! Places replicas on ranks.

use std::cmp::Reverse;
use std::ops::RangeInclusive;

use crate::error::{Result, StrategyError};
use crate::spec::{Cluster, Strategy};

/// The ranks of each replica, stage by stage; within a stage context rank by context rank, each in tensor order.
///
/// A stage is an aligned group of ranks: inside one node up to the node's size, whole nodes above it. Alignment keeps
/// tensor- and context-parallel traffic on the fast links, and the set of process groups small, because the same groups
/// recur under every strategy. The strategy's canonical order places wide groups first, so narrow ones fill the rest;
/// each group takes the first free place, and so stages follow each other.
///
/// On ranks of different rates each group takes the fastest free place, the one of most memory among equally fast
/// ones, and the first among equals: ranks of like speed form replicas, the first replica of a scheme is its fastest,
/// and ranks of no replica are the slowest. A group is as fast as its slowest rank. If wide groups at the fastest
/// places leave no room for the others, every group takes the first free place.
pub fn place(strategy: &Strategy, cluster: &Cluster) -> Result<Vec<Vec<u32>>> {
    place_in_order(strategy, cluster, &PlacementOrder::default())
}

/// The same, where replicas take the kinds of ranks in this order, and within a kind the fastest first.
pub(crate) fn place_in_order(strategy: &Strategy, cluster: &Cluster, order: &PlacementOrder) -> Result<Vec<Vec<u32>>> {
    if strategy.ranks() > u64::from(cluster.gpus()) {
        let (needed, gpus) = (strategy.ranks(), cluster.gpus());
        return Err(StrategyError::TooLarge { strategy: strategy.to_string(), needed, gpus }.into());
    }
    let ordered =
        if cluster.is_uniform() { None } else { place_by(strategy, FreeRanks::in_order(cluster, order)).ok() };
    ordered.map_or_else(|| place_by(strategy, FreeRanks::first(cluster)), Ok)
}

/// The order in which replicas, the widest first, take ranks of several kinds: of different devices or memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PlacementOrder {
    /// The kinds, the first to be taken first; empty if the fastest ranks of any kind come first.
    kinds: Vec<RankKind>,
}

impl PlacementOrder {
    /// Most kinds of which every order is tried.
    const PERMUTED: usize = 3;
    /// Most kinds of which an order is tried. Each rank's kind is looked up among them for every placement.
    const ORDERED: usize = 16;

    /// The different orders that a planner tries: the fastest ranks first, and every order of the cluster's kinds. Of more
    /// than three kinds the fastest or the slowest kind comes first; of more than 16 kinds the fastest ranks alone.
    pub(crate) fn all(cluster: &Cluster) -> Vec<PlacementOrder> {
        let sizes = memory_sizes(cluster);
        let mut kinds: Vec<RankKind> = Vec::new();
        for rank in 0..cluster.gpus() {
            RankKind::add(&mut kinds, &sizes, cluster, rank);
            if kinds.len() > PlacementOrder::ORDERED {
                return vec![PlacementOrder::default()];
            }
        }
        kinds.sort_by(|one, other| other.greatest.total_cmp(&one.greatest));
        let mut orders = if kinds.len() <= PlacementOrder::PERMUTED {
            permutations(&kinds)
        } else {
            vec![kinds.clone(), kinds.iter().cloned().rev().collect()]
        };
        orders.retain(|order| !order.windows(2).all(|pair| pair[0].comes_first(&pair[1])));
        std::iter::once(Vec::new()).chain(orders).map(|kinds| PlacementOrder { kinds }).collect()
    }

    /// The place of a rank's kind in the order; 0 where kinds do not count.
    fn of_rank(&self, cluster: &Cluster, rank: u32) -> usize {
        self.kinds.iter().position(|kind| kind.has(cluster, rank)).unwrap_or_default()
    }
}

/// The ranks of one kind.
#[derive(Clone, Debug, PartialEq)]
struct RankKind {
    device: u16,
    /// Least and greatest memory in bytes of ranks of this size; 0 where the cluster states no memory.
    memory: RangeInclusive<u64>,
    least: f64,
    greatest: f64,
}

impl RankKind {
    fn has(&self, cluster: &Cluster, rank: u32) -> bool {
        self.device == cluster.device(rank) && self.memory.contains(&stated_memory(cluster, rank))
    }

    /// Whether all its ranks are taken before any of the other kind where the fastest ranks come first.
    fn comes_first(&self, other: &RankKind) -> bool {
        let are_alike = self.least >= other.greatest && other.least >= self.greatest;
        self.least > other.greatest || (are_alike && self.memory.start() > other.memory.end())
    }

    /// Counts the rank among the known kinds.
    fn add(kinds: &mut Vec<RankKind>, sizes: &[RangeInclusive<u64>], cluster: &Cluster, rank: u32) {
        let (rate, bytes) = (cluster.rate(rank), stated_memory(cluster, rank));
        if let Some(known) = kinds.iter_mut().find(|kind| kind.has(cluster, rank)) {
            (known.least, known.greatest) = (known.least.min(rate), known.greatest.max(rate));
            return;
        }
        let memory = sizes.iter().find(|size| size.contains(&bytes)).expect("every rank's memory has a size").clone();
        kinds.push(RankKind { device: cluster.device(rank), memory, least: rate, greatest: rate });
    }
}

/// The sizes of the ranks' memory, in ascending order. A size begins at its smallest memory and includes memory up to 1/32
/// larger: the measured memory of equal devices differs by some bytes.
fn memory_sizes(cluster: &Cluster) -> Vec<RangeInclusive<u64>> {
    let mut bytes: Vec<u64> = (0..cluster.gpus()).map(|rank| stated_memory(cluster, rank)).collect();
    bytes.sort_unstable();
    let mut sizes: Vec<RangeInclusive<u64>> = Vec::new();
    for bytes in bytes {
        match sizes.last_mut() {
            Some(size) if bytes - size.start() <= size.start() / 32 => *size = *size.start()..=bytes,
            _ => sizes.push(bytes..=bytes),
        }
    }
    sizes
}

fn stated_memory(cluster: &Cluster, rank: u32) -> u64 {
    cluster.memory_of(rank).unwrap_or_default()
}

/// Every order of these kinds.
fn permutations(kinds: &[RankKind]) -> Vec<Vec<RankKind>> {
    if kinds.is_empty() {
        return vec![Vec::new()];
    }
    let beginning_with = |first: usize| {
        let mut rest = kinds.to_vec();
        let first = rest.remove(first);
        permutations(&rest).into_iter().map(move |rest| std::iter::once(first.clone()).chain(rest).collect())
    };
    (0..kinds.len()).flat_map(beginning_with).collect()
}

fn place_by(strategy: &Strategy, mut free: FreeRanks) -> Result<Vec<Vec<u32>>> {
    let replicas = strategy.schemes().iter().enumerate().map(|(replica, &scheme)| {
        let width = scheme.stage_group_ranks();
        let starts = (0..scheme.pp()).map(|_stage| free.take(width)).collect::<Option<Vec<u32>>>();
        let mut starts = starts.ok_or_else(|| StrategyError::PlacementFailed {
            strategy: strategy.to_string(),
            replica,
            scheme,
            stage_group: width,
            gpus_per_node: free.cluster.gpus_per_node(),
        })?;
        // Neighbouring stages exchange activations.
        starts.sort_unstable();
        Ok(starts.into_iter().flat_map(|start| start..start + width).collect())
    });
    replicas.collect()
}

/// The ranks of no replica yet, and the aligned places of groups of one width, best first.
struct FreeRanks<'a> {
    taken: Vec<bool>,
    cluster: &'a Cluster,
    /// The order of kinds; none to take the first free place of any kind.
    order: Option<&'a PlacementOrder>,
    /// Width of the groups of the last search, its places, and the number of them that were taken: these cannot have
    /// become free.
    width: u32,
    places: Vec<u32>,
    passed: usize,
}

impl FreeRanks<'_> {
    fn first(cluster: &Cluster) -> FreeRanks<'_> {
        let taken = vec![false; cluster.gpus() as usize];
        FreeRanks { taken, cluster, order: None, width: 0, places: Vec::new(), passed: 0 }
    }

    fn in_order<'o>(cluster: &'o Cluster, order: &'o PlacementOrder) -> FreeRanks<'o> {
        FreeRanks { order: Some(order), ..FreeRanks::first(cluster) }
    }

    /// The first rank of the best free group.
    fn take(&mut self, width: u32) -> Option<u32> {
        if self.width != width {
            (self.width, self.places, self.passed) = (width, self.places_of(width), 0);
        }
        while let Some(&start) = self.places.get(self.passed) {
            self.passed += 1;
            let ranks = &mut self.taken[start as usize..(start + width) as usize];
            if ranks.iter().all(|taken| !taken) {
                ranks.fill(true);
                return Some(start);
            }
        }
        None
    }

    /// The first ranks of all aligned groups.
    fn places_of(&self, width: u32) -> Vec<u32> {
        let (gpus, node) = (self.cluster.gpus(), self.cluster.gpus_per_node());
        if width > node && !width.is_multiple_of(node) {
            return Vec::new();
        }
        // Above a node's size places begin with a node; below it, groups tile the node.
        let nodes = (0..gpus).step_by(node as usize);
        let end = move |first: u32| first.saturating_add(node).min(gpus);
        let in_node =
            move |first: u32| (first..end(first)).step_by(width as usize).take((node / width).max(1) as usize);
        let mut places: Vec<u32> = nodes.flat_map(in_node).filter(|start| start + width <= gpus).collect();
        if let Some(order) = self.order {
            places.sort_by_cached_key(|&start| {
                let ranks = start..start + width;
                let kind = ranks.clone().map(|rank| order.of_rank(self.cluster, rank)).max();
                (kind, Reverse(self.quality(ranks)))
            });
        }
        places
    }

    /// The speed of the slowest of these ranks and the memory of the smallest, as numbers in the same order.
    fn quality(&self, ranks: std::ops::Range<u32>) -> (u64, u64) {
        // Positive floating-point numbers are in the order of their bits.
        let speed = ranks.clone().map(|rank| self.cluster.rate(rank).to_bits()).min();
        let memory = ranks.map(|rank| self.cluster.memory_of(rank).unwrap_or(u64::MAX)).min();
        (speed.unwrap_or_default(), memory.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    fn placed(strategy: &str, gpus: u32, node: u32) -> Result<Vec<Vec<u32>>> {
        place(&strategy.parse().unwrap(), &Cluster::new(gpus, node).unwrap())
    }

    #[test]
    fn stage_groups_are_aligned_and_consecutive() {
        let ranks = placed("1x<tp4>+1x<tp2,pp2>+2x<1>", 16, 8).unwrap();
        assert_eq!(ranks, [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8], vec![9]]);
        let ranks = placed("1x<tp16>+2x<tp8,pp3>", 64, 8).unwrap();
        assert_eq!(ranks[1], (16..40).collect::<Vec<_>>());
        // Context ranks are part of the group.
        let ranks = placed("1x<tp2,cp4>+1x<cp2,pp2>+2x<cp2>", 16, 8).unwrap();
        assert_eq!(ranks, [vec![0, 1, 2, 3, 4, 5, 6, 7], vec![8, 9, 10, 11], vec![12, 13], vec![14, 15]]);
        // Three ranks do not divide a node of eight: the third group starts on the next node.
        assert_eq!(placed("3x<tp3>", 16, 8).unwrap()[2], [8, 9, 10]);
    }

    #[test]
    fn the_places_of_a_node_end_with_the_clusters_ranks() {
        let cluster = Cluster::new(4, u32::MAX).unwrap();
        assert_eq!(FreeRanks::first(&cluster).places_of(1), [0, 1, 2, 3]);
    }

    #[test]
    fn a_strategy_that_does_not_fit_is_named() {
        assert_eq!(placed("3x<tp4>", 8, 8).unwrap_err().code(), "strategy_unplaceable");
        assert!(matches!(
            placed("3x<tp4>", 8, 8),
            Err(Error::Strategy(StrategyError::TooLarge { needed: 12, gpus: 8, .. }))
        ));
        for (strategy, group) in [("1x<tp12>", 12), ("1x<tp3,cp4>", 12), ("5x<tp3>", 3)] {
            let error = placed(strategy, 16, 8).unwrap_err();
            assert_eq!(error.code(), "strategy_unplaceable");
            assert!(
                matches!(error, Error::Strategy(StrategyError::PlacementFailed { stage_group, .. }) if stage_group == group)
            );
        }
    }

    #[test]
    fn no_rank_is_used_twice() {
        let ranks = placed("1x<tp8>+3x<tp4>+1x<tp2,pp4>+2x<pp2>", 32, 8).unwrap();
        let mut all: Vec<u32> = ranks.concat();
        let used = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), used);
    }

    /// The ranks of each replica on 16 ranks in nodes of 8, of which these have these rates.
    fn placed_on_slow(strategy: &str, slow: &[(usize, f64)]) -> Vec<Vec<u32>> {
        let mut rates = vec![1.0; 16];
        for &(rank, rate) in slow {
            rates[rank] = rate;
        }
        place(&strategy.parse().unwrap(), &Cluster::new(16, 8).unwrap().with_rates(rates).unwrap()).unwrap()
    }

    #[test]
    fn slow_ranks_are_in_the_last_replicas_or_idle() {
        let ranks = placed_on_slow("1x<tp8>+2x<tp4>", &[(1, 0.5), (14, 0.9)]);
        assert_eq!(ranks, [(8..16).collect::<Vec<_>>(), vec![4, 5, 6, 7], vec![0, 1, 2, 3]]);
        let ranks = placed_on_slow("3x<tp4>", &[(1, 0.5)]);
        assert_eq!(ranks, [vec![4, 5, 6, 7], vec![8, 9, 10, 11], vec![12, 13, 14, 15]]);
        // The stages of a pipeline follow each other in the order of ranks.
        let ranks = placed_on_slow("2x<tp4,pp2>", &[(5, 0.5), (9, 0.6)]);
        assert_eq!(ranks, [vec![0, 1, 2, 3, 12, 13, 14, 15], vec![4, 5, 6, 7, 8, 9, 10, 11]]);
    }

    /// Ranks 0 to 7 are slow and have much memory, ranks 8 to 11 are fast, and ranks 12 to 15 are another device.
    fn of_three_kinds() -> Cluster {
        let each = |values: [u16; 3]| (0..16).map(move |rank| values[if rank < 8 { 0 } else { rank / 4 - 1 }]);
        let cluster =
            Cluster::new(16, 8).unwrap().with_rates(each([5, 20, 10]).map(|rate| f64::from(rate) * 0.1).collect());
        let cluster = cluster.unwrap().with_memory_bytes(each([96, 80, 80]).map(u64::from).collect()).unwrap();
        cluster.with_devices(each([0, 0, 1]).collect()).unwrap()
    }

    #[test]
    fn replicas_take_kinds_in_every_order() {
        let (cluster, strategy) = (of_three_kinds(), "1x<tp4>+2x<tp2>".parse().unwrap());
        let orders = PlacementOrder::all(&cluster);
        let mut firsts: Vec<Vec<u32>> = orders
            .iter()
            .map(|order| place_in_order(&strategy, &cluster, order).unwrap().iter().map(|ranks| ranks[0]).collect())
            .collect();
        // The fastest first, and the other five orders.
        assert_eq!(firsts[0], [8, 12, 14]);
        firsts.sort();
        assert_eq!(firsts, [[0, 4, 6], [0, 4, 6], [8, 0, 2], [8, 12, 14], [12, 0, 2], [12, 8, 10]]);
    }

    #[test]
    fn ranks_of_one_kind_have_one_order_and_many_kinds_have_few() {
        let cluster = || Cluster::new(16, 4).unwrap();
        let usual = vec![PlacementOrder::default()];
        assert_eq!(PlacementOrder::all(&cluster()), usual);
        assert_eq!(PlacementOrder::all(&cluster().with_rates((1..=16).map(f64::from).collect()).unwrap()), usual);
        assert_eq!(PlacementOrder::all(&cluster().with_memory_bytes(vec![7; 16]).unwrap()), usual);
        assert_eq!(PlacementOrder::all(&cluster().with_memory_bytes((1..=16).collect()).unwrap()).len(), 2);
        assert_eq!(
            PlacementOrder::all(&Cluster::new(17, 17).unwrap().with_memory_bytes((1..=17).collect()).unwrap()),
            usual
        );
        // Kinds of equal speed: less memory first, or the other device first.
        let memory = cluster().with_memory_bytes((0..16).map(|rank| 40 * (1 + rank / 8)).collect()).unwrap();
        assert_eq!(PlacementOrder::all(&memory).len(), 2);
        let place = |order: &PlacementOrder| place_in_order(&"1x<tp4>".parse().unwrap(), &memory, order).unwrap();
        assert_eq!(
            PlacementOrder::all(&memory).iter().map(place).collect::<Vec<_>>(),
            [[[8, 9, 10, 11]], [[0, 1, 2, 3]]]
        );
        let devices = cluster().with_devices((0..16).map(|rank| rank / 8).collect()).unwrap();
        assert_eq!(PlacementOrder::all(&devices).len(), 3);
        let four = cluster().with_devices((0..16).map(|rank| rank / 4).collect()).unwrap();
        let faster = four.clone().with_rates((0..16).map(|rank| f64::from(rank / 4 + 1)).collect()).unwrap();
        assert_eq!(PlacementOrder::all(&faster).len(), 2);
        let first = place_in_order(&"1x<tp4>".parse().unwrap(), &faster, &PlacementOrder::all(&faster)[1]).unwrap();
        assert_eq!(first, [[0, 1, 2, 3]]);
    }

    /// Measured memory of equal devices differs by some bytes.
    #[test]
    fn memory_of_about_one_size_is_of_one_kind() {
        let sizes = |bytes: Vec<u64>| {
            let gpus = u32::try_from(bytes.len()).unwrap();
            memory_sizes(&Cluster::new(gpus, gpus).unwrap().with_memory_bytes(bytes).unwrap())
        };
        let found = sizes(vec![3_300, 6_400, 3_201, 3_200, 3_301, 6_600, 6_601]);
        assert_eq!(found, [3_200..=3_300, 3_301..=3_301, 6_400..=6_600, 6_601..=6_601]);
        let firsts = |jitter: u64| {
            let memory = (0..32).map(|rank| (1 + rank / 16) * 4_000 + jitter * (rank % 16)).collect();
            let cluster = Cluster::new(32, 4).unwrap().with_memory_bytes(memory).unwrap();
            let place = |order: &PlacementOrder| place_in_order(&"1x<tp4>".parse().unwrap(), &cluster, order).unwrap();
            PlacementOrder::all(&cluster).iter().map(|order| place(order)[0][0] / 16).collect::<Vec<_>>()
        };
        assert_eq!((firsts(0), firsts(1)), (vec![1, 0], vec![1, 0]));
    }

    #[test]
    fn among_equally_fast_ranks_those_of_most_memory_come_first() {
        let memory = (0..16).map(|rank| if rank < 8 { 40 } else { 80 }).collect();
        let cluster = Cluster::new(16, 8).unwrap().with_memory_bytes(memory).unwrap();
        assert_eq!(place(&"1x<tp2>".parse().unwrap(), &cluster).unwrap(), [[8, 9]]);
    }

    /// Three groups of 3 at the fastest places of 16 ranks would leave 4 and 2 ranks in the nodes.
    #[test]
    fn a_strategy_that_fits_equal_ranks_fits_any_rates() {
        let mut rates = vec![0.5; 16];
        rates[3..6].fill(1.0);
        rates[8..11].fill(1.0);
        let cluster = Cluster::new(16, 8).unwrap().with_rates(rates).unwrap();
        for strategy in ["2x<tp3>+1x<tp2>", "1x<tp3>+5x<tp2>+2x<1>", "2x<tp3>+4x<tp2>"] {
            let strategy = strategy.parse().unwrap();
            let uniform = Cluster::new(16, 8).unwrap();
            assert_eq!(place(&strategy, &cluster).is_ok(), place(&strategy, &uniform).is_ok(), "{strategy}");
        }
    }
}
