//! Errors of the stated rates and memories of a cluster's ranks.

use thiserror::Error;

use crate::error::Grouped;

/// A cluster whose ranks are stated wrongly.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ClusterError {
    /// A list has not one value for each rank.
    #[error(
        "{field} has {} values and the cluster has {} ranks: give one value for each rank, in order",
        Grouped(.given),
        Grouped(.gpus)
    )]
    RankCount {
        /// Name of the list.
        field: &'static str,
        /// Number of values.
        given: usize,
        /// Ranks of the cluster.
        gpus: u32,
    },
    /// A rate is outside its limits.
    #[error(
        "rank {rank} has rate {rate}: a rate is the rank's speed relative to the profile, from {least} to {limit}; correct it, or leave the rank out of the cluster"
    )]
    Rate {
        /// The rank.
        rank: usize,
        /// Its rate.
        rate: String,
        /// Least rate.
        least: f64,
        /// Greatest rate.
        limit: f64,
    },
    /// A rank is a device of which the profile has no times.
    #[error(
        "rank {rank} is device {device}, and the greatest number of a device in cost profile '{profile}' is {}: add the profile of each other device (CostProfile.with_other_devices), or correct the cluster's devices",
        devices - 1
    )]
    Device {
        /// The rank.
        rank: u32,
        /// Its device.
        device: u16,
        /// Name of the profile.
        profile: String,
        /// Number of the profile's devices.
        devices: usize,
    },
    /// A rank has no memory.
    #[error("rank {rank} has 0 bytes of memory: state the bytes of its device")]
    NoMemory {
        /// The rank.
        rank: usize,
    },
}
