//! The cost profile: a document of measured or predicted costs, its checks, and the shipped profiles.

mod check;
mod cost_profile;
mod document;
mod measured_link;
mod preset;

pub use cost_profile::{CostProfile, Excluded, FitQuality, Hardware, Memory, SchemeProfile, StrategyList};
pub use measured_link::{LinkOperation, MeasuredLink};
pub use preset::{PRESETS, preset};
