//! Stage 2: what a micro-batch costs in time and memory under each scheme, on this cluster.
//!
//! One stage's forward and backward of micro-batch `m` under scheme `k` takes
//! `t_k(m) = sum over its sequences s of (a_k s^2 + b_k s) + c_k` milliseconds, of which `forward_share` is
//! forward; stage `j` takes `u_j` times as long. One micro-batch may hold at most `cap_k` tokens, or by the exact rule any `p`
//! consecutive ones at most `p cap_k`: a [`MemoryWindow`].

mod analytic;
mod fit;
mod measured_link;
mod memory_window;
mod micro_batch_cost;
mod model;
mod non_negative;
mod per_stage;
mod preset;
mod profile;
mod profile_check;
mod profile_document;
mod rank_memory;
mod recomputation;
mod stage_memory;
mod travelling;
mod trust;

pub use analytic::{DEVICES, Device, Efficiency, device};
pub use fit::{CostFit, Interval, MeasuredRange, Measurement, fit, fit_schemes, micro_batches_to_measure};
pub use measured_link::{LinkOperation, MeasuredLink};
pub use memory_window::MemoryWindow;
pub use model::{CostModel, SchemeCost};
pub use per_stage::PerStage;
pub use preset::{PRESETS, preset};
pub use profile::{CostProfile, Excluded, FitQuality, Hardware, Memory, SchemeProfile, StrategyList};
pub use rank_memory::RankMemory;
pub use trust::Trust;
