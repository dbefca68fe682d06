//! The code and the kind of each error.

use crate::error::codes::{self, ErrorCode};
use crate::error::{BalanceError, Error, FitError, LayoutError, LinkError, ProfileError, StrategyError, WindowError};

/// The way in which a caller can respond to an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// A value is invalid: correct it.
    InvalidInput,
    /// The input is valid and no plan exists for it: change the cluster, the memory or the batch.
    Infeasible,
    /// The caller cancelled the computation.
    Stopped,
}

impl Error {
    /// Stable code of the error, one of [`codes::ALL`].
    pub fn code(&self) -> &'static str {
        self.error_code().name
    }

    fn error_code(&self) -> &'static ErrorCode {
        match self {
            Error::BatchEmpty | Error::NoTargets | Error::NoBatches => &codes::BATCH_EMPTY,
            Error::LengthOutOfRange { .. }
            | Error::TargetsMismatch { .. }
            | Error::TargetOutOfRange { .. }
            | Error::CountsMismatch { .. }
            | Error::CountOutOfRange { .. } => &codes::LENGTHS_INVALID,
            Error::InBatch { error, .. } => error.error_code(),
            Error::ContextTooLong { .. } | Error::SequenceTooLong { .. } | Error::SequenceAboveCap { .. } => {
                &codes::SEQUENCE_TOO_LONG
            }
            Error::MemoryRule { .. }
            | Error::SequenceCost { .. }
            | Error::TokenLimit { .. }
            | Error::DrawLimit { .. }
            | Error::ReplicaCount { .. }
            | Error::ClusterShape { .. }
            | Error::Cluster(_)
            | Error::Slowdown { .. }
            | Error::SwitchCost { .. }
            | Error::HeadLayers { .. } => &codes::ARGUMENT_INVALID,
            Error::Stopped => &codes::STOPPED,
            Error::ModelShape { .. } => &codes::MODEL_INVALID,
            Error::DeviceUnknown { .. } => &codes::PROFILE_UNKNOWN,
            Error::PlanSyntax { .. } => &codes::PLAN_INVALID,
            Error::OtherCluster { .. } | Error::DurationsMismatch { .. } => &codes::PLAN_MISMATCH,
            Error::SchemeTooLarge { .. } | Error::SchemesTooLarge { .. } | Error::HostMemoryTooSmall { .. } => {
                &codes::SCHEME_TOO_LARGE
            }
            Error::LayerSplit { .. } | Error::TooManyStages { .. } | Error::OtherSplit { .. } => {
                &codes::SCHEME_MODEL_MISMATCH
            }
            Error::Balance(error) => error.error_code(),
            Error::Window(error) => error.error_code(),
            Error::Layout(error) => error.error_code(),
            Error::Strategy(error) => error.error_code(),
            Error::Profile(error) => error.error_code(),
            Error::Fit(error) => error.error_code(),
            Error::Link(error) => error.error_code(),
        }
    }

    /// Kind of the error: invalid input, infeasible, or stopped.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::InBatch { error, .. } => error.kind(),
            Error::SequenceTooLong { .. }
            | Error::SequenceAboveCap { .. }
            | Error::SchemeTooLarge { .. }
            | Error::SchemesTooLarge { .. }
            | Error::HostMemoryTooSmall { .. }
            | Error::ContextTooLong { .. }
            | Error::Balance(
                BalanceError::ExtraAboveCap { .. }
                | BalanceError::GroupAboveCap { .. }
                | BalanceError::TooFewSequences { .. }
                | BalanceError::TooFewUnderCap { .. }
                | BalanceError::NoPacking { .. },
            )
            | Error::Window(WindowError::LongerThanWindow { .. })
            // A single strategy can be written smaller; if every scheme is too wide, there is none to write.
            | Error::Strategy(StrategyError::SchemesTooWide { .. }) => ErrorKind::Infeasible,
            Error::Stopped => ErrorKind::Stopped,
            _ => ErrorKind::InvalidInput,
        }
    }
}

impl BalanceError {
    fn error_code(&self) -> &'static ErrorCode {
        match self {
            BalanceError::MicroBatches { .. }
            | BalanceError::MicroBatchesContradict { .. }
            | BalanceError::TooManyMicroBatches { .. }
            | BalanceError::FixedTime { .. }
            | BalanceError::Speed { .. }
            | BalanceError::SpeedsMismatch { .. }
            | BalanceError::Work { .. }
            | BalanceError::ExtraTokensAlone { .. }
            | BalanceError::GroupsUnequal { .. } => &codes::ARGUMENT_INVALID,
            BalanceError::ValuesMismatch { .. } | BalanceError::ExtraTokens { .. } => &codes::LENGTHS_INVALID,
            BalanceError::ExtraAboveCap { .. } | BalanceError::GroupAboveCap { .. } => &codes::SEQUENCE_TOO_LONG,
            BalanceError::TooFewSequences { .. }
            | BalanceError::TooFewUnderCap { .. }
            | BalanceError::NoPacking { .. } => &codes::BATCH_UNPLACEABLE,
        }
    }
}

impl WindowError {
    fn error_code(&self) -> &'static ErrorCode {
        match self {
            WindowError::LongerThanWindow { .. } => &codes::SEQUENCE_TOO_LONG,
            WindowError::TooManySequences { .. } | WindowError::LengthsChanged { .. } => &codes::LENGTHS_INVALID,
        }
    }
}

impl LayoutError {
    fn error_code(&self) -> &'static ErrorCode {
        match self {
            LayoutError::ParameterTable { .. } | LayoutError::TableSize { .. } => &codes::MODEL_INVALID,
            LayoutError::PositionOutOfRange { .. } | LayoutError::RankOutOfStageGroup { .. } => {
                &codes::ARGUMENT_INVALID
            }
            LayoutError::RanksMismatch { .. } => &codes::PLAN_MISMATCH,
        }
    }
}

impl StrategyError {
    fn error_code(&self) -> &'static ErrorCode {
        match self {
            StrategyError::SchemeSyntax { .. } | StrategyError::Syntax { .. } => &codes::STRATEGY_INVALID,
            StrategyError::NoneGiven => &codes::NO_STRATEGIES,
            StrategyError::TooLarge { .. }
            | StrategyError::SchemesTooWide { .. }
            | StrategyError::PlacementFailed { .. } => &codes::STRATEGY_UNPLACEABLE,
            StrategyError::Limit { .. } => &codes::ARGUMENT_INVALID,
        }
    }
}

impl ProfileError {
    fn error_code(&self) -> &'static ErrorCode {
        match self {
            ProfileError::Syntax { .. } | ProfileError::Value { .. } | ProfileError::ModelUnknown { .. } => {
                &codes::PROFILE_INVALID
            }
            ProfileError::PresetUnknown { .. } => &codes::PROFILE_UNKNOWN,
            ProfileError::SchemeUnknown { .. } => &codes::SCHEME_UNKNOWN,
        }
    }
}

impl FitError {
    fn error_code(&self) -> &'static ErrorCode {
        match self {
            FitError::Unusable { .. } | FitError::Unidentified { .. } => &codes::FIT_UNDERDETERMINED,
            FitError::Unexplained { .. } => &codes::FIT_UNEXPLAINED,
        }
    }
}

impl LinkError {
    fn error_code(&self) -> &'static ErrorCode {
        match self {
            LinkError::ModelUnknown { .. } => &codes::PROFILE_INVALID,
            LinkError::Rate { .. }
            | LinkError::Syntax { .. }
            | LinkError::ElementBytes { .. }
            | LinkError::MessageTime { .. }
            | LinkError::NodeSlowdown { .. }
            | LinkError::NodeCount { .. }
            | LinkError::NetworkValue { .. } => &codes::ARGUMENT_INVALID,
        }
    }
}
