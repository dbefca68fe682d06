//! Errors of layouts and their transfers.

use thiserror::Error;

use crate::error::Grouped;
use crate::spec::Scheme;

/// An error of a layout.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// An entry of a parameter table is invalid.
    #[error("parameter '{name}': {field} is {value}, it must be {limit}; correct the parameter's entry")]
    ParameterTable {
        /// Name of the parameter.
        name: String,
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: String,
        /// Range of the field.
        limit: String,
    },
    /// A parameter table is larger than the arithmetic on it allows.
    #[error(
        "the parameter table has {value} {field}: the limit is {limit}; correct its sizes",
        value = Grouped(.value),
        limit = Grouped(.limit)
    )]
    TableSize {
        /// The counted things.
        field: &'static str,
        /// Their number.
        value: String,
        /// Largest number.
        limit: u64,
    },
    /// A position does not exist in a replica of the scheme.
    #[error(
        "stage {stage}, context rank {context_rank}, tensor rank {tensor_rank} is no position in a replica of {scheme}: each is at least 0 and below its degree; correct the position"
    )]
    PositionOutOfRange {
        /// The scheme.
        scheme: Scheme,
        /// Requested stage.
        stage: u16,
        /// Requested context rank.
        context_rank: u16,
        /// Requested tensor rank.
        tensor_rank: u16,
    },
    /// A rank's stage group would begin below rank 0.
    #[error(
        "rank {rank} cannot be number {place} of {stage_group} consecutive ranks, because ranks begin at 0; give the position of this rank, as Plan.position does"
    )]
    RankOutOfStageGroup {
        /// The rank.
        rank: u32,
        /// Its position in the group, from 0.
        place: u32,
        /// Ranks of the group.
        stage_group: u32,
    },
    /// Optimizer shards, a plan and a rank do not match.
    #[error(
        "rank {rank} of a plan for {gpus} ranks, with optimizer shards on {shards} ranks: the plan and the shards must have the same number of ranks, at least 1, and include the rank; make the optimizer shards for the plan's cluster"
    )]
    RanksMismatch {
        /// The rank.
        rank: u64,
        /// Ranks of the plan.
        gpus: u64,
        /// Ranks of the optimizer shards.
        shards: u64,
    },
}
