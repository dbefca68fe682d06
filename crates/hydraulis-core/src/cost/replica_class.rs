//! The class of a replica: its scheme and the ranks that it may occupy.

use crate::cost::CostProfile;
use crate::spec::Scheme;

/// Ranks of equal speed and memory.
///
/// Every cluster today is one pool, with the profile's speed and memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankPool {
    /// Speed relative to the ranks that the profile measured: at 2.0 every time is half as long.
    pub speed: f64,
    /// Memory of each rank, in bytes.
    pub memory_bytes: u64,
}

/// The scheme of a replica and the ranks that it may occupy.
///
/// Two replicas of one scheme on ranks of different speed or memory are of two classes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplicaClass {
    /// Degrees and layer plan.
    pub scheme: Scheme,
    /// The ranks of the class's replicas.
    pub pool: RankPool,
}

/// The index of a class in the table of a cost model, the key of costs and capacities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(pub(super) usize);

impl RankPool {
    /// The ranks that the profile measured.
    pub fn of_profile(profile: &CostProfile) -> RankPool {
        RankPool { speed: 1.0, memory_bytes: profile.hardware.memory_bytes }
    }
}

impl ClassId {
    /// The index in the table.
    pub fn index(self) -> usize {
        self.0
    }
}
