//! The tensors of its stage that a rank holds in parts.

use serde::{Deserialize, Serialize};

/// The tensors of its stage that a rank holds for two buckets at a time.
///
/// Memory and transfers depend on it. Therefore a cost profile states the kind, and training refuses the profile of
/// another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShardingKind {
    /// A rank holds parameters and gradients of its whole stage. Parameters come once, before the first forward, and
    /// gradients leave once, during the last backward.
    #[default]
    None,
    /// A rank holds the gradients of two buckets, which leave for their owners after each micro-batch. Schemes have no
    /// pipeline stages.
    Gradients,
    /// A rank also holds the parameters of two buckets, which come from their owners for each forward and each backward.
    Parameters,
}

impl ShardingKind {
    /// All kinds, by the memory that they leave.
    pub const ALL: [ShardingKind; 3] = [ShardingKind::None, ShardingKind::Gradients, ShardingKind::Parameters];

    /// The kind with this name.
    pub fn named(text: &str) -> Option<ShardingKind> {
        ShardingKind::ALL.into_iter().find(|kind| kind.name() == text)
    }

    /// The kind's name in documents.
    pub fn name(self) -> &'static str {
        match self {
            ShardingKind::None => "none",
            ShardingKind::Gradients => "gradients",
            ShardingKind::Parameters => "parameters",
        }
    }

    /// Whether a rank holds parameters and gradients of its whole stage.
    pub fn is_none(&self) -> bool {
        *self == ShardingKind::None
    }
}
