//! The inputs of planning, validated on construction.

mod checkpointing_kind;
mod cluster;
mod degrees;
mod dtype;
mod kinds;
mod layer_plan;
mod layer_split;
mod link_rates;
mod memory_rule;
mod model_shape;
mod scheme;
mod search_budget;
mod shard_scheme;
mod stage_split;
mod strategy;

pub use checkpointing_kind::CheckpointingKind;
pub use cluster::Cluster;
pub(crate) use cluster::MAX_GPUS;
pub use degrees::{Axis, Coordinates, Degrees};
pub use dtype::Dtype;
pub use kinds::{ContextKind, ShardingKind};
pub use layer_plan::LayerPlan;
pub use layer_split::LayerSplit;
pub use link_rates::LinkRates;
pub use memory_rule::MemoryRule;
pub(crate) use model_shape::MOST_PARAMETERS;
pub use model_shape::{ModelPart, ModelShape, ParameterRow, ShapeFields};
pub use scheme::Scheme;
pub use search_budget::{
    BalanceBudget, BoundBudget, CapacityBudget, DispatchBudget, ExactBudget, ExchangeBudget, FirstFitBudget,
    LocalSearchBudget, LongBudget, MergeBudget, PackingBudget, RefineBudget, RunBudget, SearchBudget, SizingBudget,
    SlotBalanceBudget, StepBalanceBudget, SurveyBudget,
};
pub(crate) use shard_scheme::shard_scheme;
pub use stage_split::StageSplit;
pub use strategy::Strategy;
