//! What each error is to a caller: its stable code, and what can be done about it.

use crate::error::{Error, LayoutError, WindowError};

/// What a caller can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// A value is not what it must be: correct it.
    InvalidInput,
    /// The input is well-formed and nothing can serve it: change the cluster, the memory or the batch.
    Infeasible,
}

impl Error {
    /// The stable code, as `docs/errors.md` lists it.
    pub fn code(&self) -> &'static str {
        match self {
            Error::BatchEmpty => "batch_empty",
            Error::LengthOutOfRange { .. } => "length_out_of_range",
            Error::TargetsMismatch { .. } => "targets_mismatch",
            Error::TargetOutOfRange { .. } => "target_out_of_range",
            Error::NoTargets => "no_targets",
            Error::CountsMismatch { .. } => "counts_mismatch",
            Error::CountOutOfRange { .. } => "count_out_of_range",
            Error::NoBatches => "no_batches",
            Error::InBatch { error, .. } => error.code(),
            Error::StrategyLimit { .. } => "strategy_limit",
            Error::ContextTooLong { .. } => "context_too_long",
            Error::MemoryRule { .. } => "memory_rule",
            Error::PaperGrid { .. } => "paper_grid",
            Error::Stopped => "stopped",
            Error::SequenceCost { .. } => "sequence_cost",
            Error::Window(error) => error.code(),
            Error::TokenLimit { .. } => "token_limit",
            Error::ReplicaCount { .. } => "replica_count",
            Error::ClusterShape { .. } => "cluster_shape",
            Error::SchemeSyntax { .. } => "scheme_syntax",
            Error::StrategySyntax { .. } => "strategy_syntax",
            Error::NoStrategies => "no_strategies",
            Error::StrategyTooLarge { .. } | Error::SchemesTooWide { .. } => "strategy_too_large",
            Error::PlacementFailed { .. } => "placement_failed",
            Error::SchemeUnknown { .. } => "scheme_unknown",
            Error::PresetUnknown { .. } => "preset_unknown",
            Error::ProfileSyntax { .. } => "profile_syntax",
            Error::ProfileValue { .. } => "profile_value",
            Error::ModelShape { .. } => "model_shape",
            Error::DeviceUnknown { .. } => "device_unknown",
            Error::NotDescribed { .. } => "profile_model",
            Error::FitPoints { .. } => "fit_points",
            Error::FitUnidentified { .. } => "fit_unidentified",
            Error::FitUnexplained { .. } => "fit_unexplained",
            Error::PlanSyntax { .. } => "plan_syntax",
            Error::DurationsMismatch { .. } => "durations_mismatch",
            Error::SequenceTooLong { .. } => "sequence_too_long",
            Error::SchemeTooLarge { .. } => "scheme_too_large",
            Error::Layout(error) => error.code(),
            Error::LinkRate { .. } => "link_rate",
            Error::LinkSyntax { .. } => "link_syntax",
            Error::LinkModel { .. } => "link_model",
            Error::ElementBytes { .. } => "element_bytes",
            Error::Slowdown { .. } => "slowdown",
            Error::NetworkValue { .. } => "network_value",
            Error::MessageTime { .. } => "message_time",
            Error::SwitchCost { .. } => "switch_cost",
            Error::HeadLayers { .. } => "head_layers",
            Error::LayerSplit { .. } => "layer_split",
            Error::TooManyStages { .. } => "too_many_stages",
        }
    }

    /// Whether the caller must correct a value, or ask for something else.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::InBatch { error, .. } => error.kind(),
            Error::SequenceTooLong { .. }
            | Error::SchemeTooLarge { .. }
            | Error::ContextTooLong { .. }
            | Error::Window(WindowError::LongerThanWindow { .. }) => ErrorKind::Infeasible,
            _ => ErrorKind::InvalidInput,
        }
    }
}

impl WindowError {
    fn code(&self) -> &'static str {
        match self {
            WindowError::LongerThanWindow { .. } => "longer_than_window",
            WindowError::TooManySequences { .. } => "too_many_sequences",
            WindowError::LengthsChanged { .. } => "lengths_changed",
        }
    }
}

impl LayoutError {
    fn code(&self) -> &'static str {
        match self {
            LayoutError::ParameterTable { .. } => "parameter_table",
            LayoutError::TableSize { .. } => "table_size",
            LayoutError::PositionOutOfRange { .. } => "position_out_of_range",
            LayoutError::RankOutOfBlock { .. } => "rank_out_of_block",
            LayoutError::RanksMismatch { .. } => "ranks_mismatch",
            LayoutError::ElementUnheld { .. } => "element_unheld",
        }
    }
}
