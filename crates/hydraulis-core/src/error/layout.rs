//! What layouts and their transfers refuse.

use thiserror::Error;

use crate::error::Grouped;
use crate::spec::Scheme;

/// An error of a layout.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// A table of parameters that does not describe a model.
    #[error("parameter '{name}': {field} is {value}, it must be {limit}; correct the parameter's entry")]
    ParameterTable {
        /// The parameter.
        name: String,
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// Its range.
        limit: String,
    },
    /// A table of parameters that is larger than any model.
    #[error(
        "the parameter table has {value} {field}: the limit is {limit}; correct its sizes",
        value = Grouped(.value),
        limit = Grouped(.limit)
    )]
    TableSize {
        /// What there are too many of.
        field: &'static str,
        /// How many.
        value: String,
        /// Most that are counted with.
        limit: u64,
    },
    /// A place that a replica of the scheme does not have.
    #[error(
        "stage {stage}, context rank {context_rank}, tensor rank {tensor_rank} is no place in a replica of {scheme}: each counts from 0 to below its degree; correct the position"
    )]
    PositionOutOfRange {
        /// The scheme.
        scheme: Scheme,
        /// The stage asked.
        stage: u16,
        /// The context rank asked.
        context_rank: u16,
        /// The tensor rank asked.
        tensor_rank: u16,
    },
    /// A rank whose block would begin below rank 0.
    #[error(
        "rank {rank} cannot be the one of place {place} in a block of {block} consecutive ranks, which are numbered from 0; give the position of this rank, as Plan.position does"
    )]
    RankOutOfBlock {
        /// The rank asked.
        rank: u32,
        /// Its place in the block, from 0.
        place: u32,
        /// Ranks of the block.
        block: u32,
    },
    /// A home layout, a plan and a rank that do not go together.
    #[error(
        "rank {rank} of a plan for {gpus} ranks, with a home layout over {home}: both are over the same ranks, at least 1, and the rank is one of them; make the home layout for the plan's cluster"
    )]
    RanksMismatch {
        /// The rank asked.
        rank: u64,
        /// Ranks of the plan.
        gpus: u64,
        /// Ranks of the home layout.
        home: u64,
    },
    /// Elements to be moved that nobody has.
    #[error(
        "rank {rank} needs element {element}, which no rank holds: the limit is what the sources hold together; give the holdings of all ranks"
    )]
    ElementUnheld {
        /// Who needs it.
        rank: u32,
        /// The first that is missing.
        element: u64,
    },
}
