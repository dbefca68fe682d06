//! The cost profile: a document of measured or predicted costs, its checks, the layer plans between its kinds of
//! checkpointing, other devices, and the shipped profiles.

mod check;
mod cost_profile;
mod derived;
mod devices;
mod document;
mod layer_plans;
mod layer_splits;
mod measured_link;
mod preset;
mod sharding;

pub use cost_profile::{CostProfile, Excluded, FitQuality, Hardware, Memory, SchemeProfile, StrategyList};
pub use devices::OtherDevice;
pub use measured_link::{LinkOperation, MeasuredLink};
pub use preset::{PRESETS, preset};
