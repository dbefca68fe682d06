//! The class of a replica: its scheme, and the speed, device and memory of its stages' ranks.

use std::cmp::Ordering;

use crate::cost::CostProfile;
use crate::spec::{Cluster, Scheme};

/// The speed and memory that ranks have at least, and the device of the slowest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankPool {
    /// Speed relative to the ranks that the profile measured: at 2.0 every time is half as long.
    pub speed: f64,
    /// Device whose times the slowest rank takes: 0 for the profile's first.
    pub device: u16,
    /// Memory of each rank, in bytes.
    pub memory_bytes: u64,
}

/// The scheme of a replica, and the ranks of each of its stages.
///
/// Two replicas of one scheme on ranks of different speed, device or memory are of two classes. Classes are the keys of costs
/// and capacities.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaClass {
    /// Degrees and layer plan.
    pub scheme: Scheme,
    /// The ranks of each stage: as fast as the slowest of them, with the memory of the smallest.
    pub stages: Vec<RankPool>,
}

impl RankPool {
    /// The ranks that the profile measured.
    pub fn of_profile(profile: &CostProfile) -> RankPool {
        RankPool { speed: 1.0, device: 0, memory_bytes: profile.hardware.memory_bytes }
    }

    /// Ranks like the cluster's fastest, with the greatest memory of its ranks.
    pub fn best_of(profile: &CostProfile, cluster: &Cluster) -> RankPool {
        let usual = RankPool::of_profile(profile);
        if cluster.is_uniform() {
            return usual;
        }
        let fastest =
            (0..cluster.gpus()).map(|rank| RankPool::of_rank(usual, cluster, rank)).max_by(RankPool::by_speed);
        let memory_bytes = cluster.memory_bytes().and_then(|bytes| bytes.iter().copied().max());
        RankPool { memory_bytes: memory_bytes.unwrap_or(usual.memory_bytes), ..fastest.unwrap_or(usual) }
    }

    /// A rank of the cluster; `usual` where the cluster states nothing.
    fn of_rank(usual: RankPool, cluster: &Cluster, rank: u32) -> RankPool {
        let memory_bytes = cluster.memory_of(rank).unwrap_or(usual.memory_bytes);
        RankPool { speed: cluster.rate(rank), device: cluster.device(rank), memory_bytes }
    }

    /// The order of speeds; equally fast ranks are in the order of their devices.
    fn by_speed(&self, other: &RankPool) -> Ordering {
        self.speed.total_cmp(&other.speed).then(self.device.cmp(&other.device))
    }

    /// The speed and memory that all of these ranks have, and the slowest one's device.
    fn of_ranks(profile: &CostProfile, cluster: &Cluster, ranks: &[u32]) -> RankPool {
        let usual = RankPool::of_profile(profile);
        let each = || ranks.iter().map(|&rank| RankPool::of_rank(usual, cluster, rank));
        let memory_bytes = each().map(|pool| pool.memory_bytes).min();
        let slowest = each().min_by(RankPool::by_speed).unwrap_or(usual);
        RankPool { memory_bytes: memory_bytes.unwrap_or(usual.memory_bytes), ..slowest }
    }
}

impl ReplicaClass {
    /// The class of a replica with all its stages on such ranks.
    pub fn on(scheme: Scheme, pool: RankPool) -> ReplicaClass {
        ReplicaClass { scheme, stages: vec![pool; scheme.stages()] }
    }

    /// The class of a replica that occupies these ranks, given stage by stage.
    pub fn of_ranks(scheme: Scheme, profile: &CostProfile, cluster: &Cluster, ranks: &[u32]) -> ReplicaClass {
        let width = scheme.stage_group_ranks() as usize;
        let stages = (0..scheme.stages()).map(|stage| {
            let own = ranks.get(stage * width..).unwrap_or_default();
            RankPool::of_ranks(profile, cluster, &own[..own.len().min(width)])
        });
        ReplicaClass { scheme, stages: stages.collect() }
    }

    /// The ranks of its slowest stage.
    pub(super) fn slowest(&self) -> RankPool {
        *self.stages.iter().min_by(|one, other| one.by_speed(other)).expect("a scheme has at least one stage")
    }
}
