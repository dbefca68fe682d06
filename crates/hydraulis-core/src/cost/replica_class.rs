//! The class of a replica: its scheme, and the speed and memory of its stages' ranks.

use crate::cost::CostProfile;
use crate::spec::{Cluster, Scheme};

/// The speed and memory that ranks have at least.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankPool {
    /// Speed relative to the ranks that the profile measured: at 2.0 every time is half as long.
    pub speed: f64,
    /// Memory of each rank, in bytes.
    pub memory_bytes: u64,
}

/// The scheme of a replica, and the ranks of each of its stages.
///
/// Two replicas of one scheme on ranks of different speed or memory are of two classes. Classes are the keys of costs
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
        RankPool { speed: 1.0, memory_bytes: profile.hardware.memory_bytes }
    }

    /// Ranks of the greatest speed and the greatest memory of the cluster's ranks.
    pub fn best_of(profile: &CostProfile, cluster: &Cluster) -> RankPool {
        let usual = RankPool::of_profile(profile);
        let speed = cluster.rates().map(|rates| rates.iter().copied().fold(0.0, f64::max));
        let memory_bytes = cluster.memory_bytes().and_then(|bytes| bytes.iter().copied().max());
        RankPool { speed: speed.unwrap_or(usual.speed), memory_bytes: memory_bytes.unwrap_or(usual.memory_bytes) }
    }

    /// The speed and memory that all of these ranks have.
    fn of_ranks(profile: &CostProfile, cluster: &Cluster, ranks: &[u32]) -> RankPool {
        let usual = RankPool::of_profile(profile);
        let speed = ranks.iter().map(|&rank| cluster.rate(rank)).min_by(f64::total_cmp);
        let memory = ranks.iter().map(|&rank| cluster.memory_of(rank).unwrap_or(usual.memory_bytes)).min();
        RankPool { speed: speed.unwrap_or(usual.speed), memory_bytes: memory.unwrap_or(usual.memory_bytes) }
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

    /// The speed of its slowest stage.
    pub fn slowest(&self) -> f64 {
        self.stages.iter().map(|pool| pool.speed).fold(f64::INFINITY, f64::min)
    }
}
