//! The cost of a micro-batch in time and memory for each class of replicas, on one cluster.
//!
//! One stage's forward and backward of micro-batch `m` on class `k` takes `t_k(m) = max(d_k, sum over its sequences s
//! of (a_k s^2 + b_k s) + c_k)` milliseconds, of which `forward_share` is forward; stage `j` takes `u_j` times as long. One
//! micro-batch may hold at most `cap_k` tokens, or with the in-flight limit any `p` consecutive ones at most `p cap_k`:
//! a [`InFlightLimit`].
//!
//! A stage is as fast as the slowest of its ranks and has room for as much as the smallest: on ranks of rate `r` each
//! time is the profile's divided by `r`. The [`ReplicaClass`] of a replica states both for each stage.
//!
//! A profile may have times of several devices ([`OtherDevice`]). The coefficients of a replica are those of its slowest
//! rank's device, and its other stages take times in proportion to their rates: exact for replicas on one kind of device.

mod analytic;
mod class_cost;
mod fit;
mod host_copies;
mod memory;
mod model;
mod per_stage;
mod profile;
mod recomputation;
mod replica_class;

pub use analytic::{DEVICES, Device, Efficiency, MeasuredDevice, device};
pub use class_cost::{ClassCost, Reliability};
pub use fit::{CostFit, Interval, MeasuredRange, Measurement, fit, fit_schemes, micro_batches_to_measure};
pub use memory::{InFlightLimit, RankMemory};
pub use model::CostModel;
pub use per_stage::PerStage;
pub use profile::{
    CostProfile, Excluded, FitQuality, Hardware, LinkOperation, MeasuredLink, Memory, OtherDevice, PRESETS,
    SchemeProfile, StrategyList, preset,
};
pub use replica_class::{RankPool, ReplicaClass};
