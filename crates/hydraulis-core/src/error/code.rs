//! What each error is to a caller: its stable code, and what can be done about it.

use crate::error::{Error, FitError, LayoutError, LinkError, ProfileError, StrategyError, WindowError};

/// What a caller can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// A value is not what it must be: correct it.
    InvalidInput,
    /// The input is well-formed and nothing can serve it: change the cluster, the memory or the batch.
    Infeasible,
    /// Nothing is wrong: whoever watched the work ended it.
    Stopped,
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
            Error::ContextTooLong { .. } => "context_too_long",
            Error::MemoryRule { .. } => "memory_rule",
            Error::PaperGrid { .. } => "paper_grid",
            Error::Stopped => "stopped",
            Error::SequenceCost { .. } => "sequence_cost",
            Error::Window(error) => error.code(),
            Error::TokenLimit { .. } => "token_limit",
            Error::ReplicaCount { .. } => "replica_count",
            Error::ClusterShape { .. } => "cluster_shape",
            Error::ModelShape { .. } => "model_shape",
            Error::DeviceUnknown { .. } => "device_unknown",
            Error::PlanSyntax { .. } => "plan_syntax",
            Error::OtherCluster { .. } => "other_cluster",
            Error::DurationsMismatch { .. } => "durations_mismatch",
            Error::SequenceTooLong { .. } | Error::SequenceAboveCap { .. } => "sequence_too_long",
            Error::SchemeTooLarge { .. } | Error::SchemesTooLarge { .. } => "scheme_too_large",
            Error::Layout(error) => error.code(),
            Error::Strategy(error) => error.code(),
            Error::Profile(error) => error.code(),
            Error::Fit(error) => error.code(),
            Error::Link(error) => error.code(),
            Error::Slowdown { .. } => "slowdown",
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
            Error::Window(error) => error.kind(),
            Error::Strategy(error) => error.kind(),
            Error::SequenceTooLong { .. }
            | Error::SequenceAboveCap { .. }
            | Error::SchemeTooLarge { .. }
            | Error::SchemesTooLarge { .. }
            | Error::ContextTooLong { .. } => ErrorKind::Infeasible,
            Error::Stopped => ErrorKind::Stopped,
            Error::BatchEmpty
            | Error::LengthOutOfRange { .. }
            | Error::TargetsMismatch { .. }
            | Error::TargetOutOfRange { .. }
            | Error::NoTargets
            | Error::CountsMismatch { .. }
            | Error::CountOutOfRange { .. }
            | Error::NoBatches
            | Error::MemoryRule { .. }
            | Error::PaperGrid { .. }
            | Error::SequenceCost { .. }
            | Error::TokenLimit { .. }
            | Error::ReplicaCount { .. }
            | Error::ClusterShape { .. }
            | Error::ModelShape { .. }
            | Error::DeviceUnknown { .. }
            | Error::PlanSyntax { .. }
            | Error::OtherCluster { .. }
            | Error::DurationsMismatch { .. }
            | Error::Layout(_)
            | Error::Profile(_)
            | Error::Fit(_)
            | Error::Link(_)
            | Error::Slowdown { .. }
            | Error::SwitchCost { .. }
            | Error::HeadLayers { .. }
            | Error::LayerSplit { .. }
            | Error::TooManyStages { .. } => ErrorKind::InvalidInput,
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

    fn kind(&self) -> ErrorKind {
        match self {
            WindowError::LongerThanWindow { .. } => ErrorKind::Infeasible,
            WindowError::TooManySequences { .. } | WindowError::LengthsChanged { .. } => ErrorKind::InvalidInput,
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

impl StrategyError {
    fn code(&self) -> &'static str {
        match self {
            StrategyError::SchemeSyntax { .. } => "scheme_syntax",
            StrategyError::Syntax { .. } => "strategy_syntax",
            StrategyError::NoneGiven => "no_strategies",
            StrategyError::TooLarge { .. } | StrategyError::SchemesTooWide { .. } => "strategy_too_large",
            StrategyError::PlacementFailed { .. } => "placement_failed",
            StrategyError::Limit { .. } => "strategy_limit",
        }
    }

    /// A strategy that is too large can be written smaller; where every scheme is, there is none to write.
    fn kind(&self) -> ErrorKind {
        match self {
            StrategyError::SchemesTooWide { .. } => ErrorKind::Infeasible,
            StrategyError::SchemeSyntax { .. }
            | StrategyError::Syntax { .. }
            | StrategyError::NoneGiven
            | StrategyError::TooLarge { .. }
            | StrategyError::PlacementFailed { .. }
            | StrategyError::Limit { .. } => ErrorKind::InvalidInput,
        }
    }
}

impl ProfileError {
    fn code(&self) -> &'static str {
        match self {
            ProfileError::Syntax { .. } => "profile_syntax",
            ProfileError::Value { .. } => "profile_value",
            ProfileError::PresetUnknown { .. } => "preset_unknown",
            ProfileError::SchemeUnknown { .. } => "scheme_unknown",
            ProfileError::ModelUnknown { .. } => "profile_model",
        }
    }
}

impl FitError {
    fn code(&self) -> &'static str {
        match self {
            FitError::Unusable { .. } => "fit_points",
            FitError::Unidentified { .. } => "fit_unidentified",
            FitError::Unexplained { .. } => "fit_unexplained",
        }
    }
}

impl LinkError {
    fn code(&self) -> &'static str {
        match self {
            LinkError::Rate { .. } => "link_rate",
            LinkError::Syntax { .. } => "link_syntax",
            LinkError::ModelUnknown { .. } => "link_model",
            LinkError::ElementBytes { .. } => "element_bytes",
            LinkError::MessageTime { .. } => "message_time",
            LinkError::NetworkValue { .. } => "network_value",
        }
    }
}
