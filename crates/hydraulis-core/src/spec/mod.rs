//! Stage 0: what there is to plan with, validated where it is made.

mod checkpointing_kind;
mod cluster;
mod context_kind;
mod memory_rule;
mod scheme;
mod strategy;

pub use checkpointing_kind::CheckpointingKind;
pub use cluster::Cluster;
pub use context_kind::ContextKind;
pub use memory_rule::MemoryRule;
pub use scheme::Scheme;
pub use strategy::Strategy;
