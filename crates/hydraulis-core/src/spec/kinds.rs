//! The kinds of context parallelism and of sharding, and the display of all kinds by their names.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::spec::{CheckpointingKind, Dtype, MemoryRule};

/// The way in which a scheme's context parallelism exchanges the inputs of attention.
///
/// Time and memory of a scheme depend on the kind. Therefore a cost profile names the measured kind of each scheme with
/// cp > 1, and a plan passes the kind to the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContextKind {
    /// Each rank computes attention for some of the heads over all tokens. An all-to-all exchanges tokens for heads.
    Ulysses,
    /// Each rank computes attention for all heads of its own tokens. Keys and values circulate from rank to rank.
    Ring,
}

impl ContextKind {
    /// The kind with this name.
    pub fn named(text: &str) -> Option<ContextKind> {
        [ContextKind::Ulysses, ContextKind::Ring].into_iter().find(|kind| kind.name() == text)
    }

    /// The kind's name in documents.
    pub fn name(self) -> &'static str {
        match self {
            ContextKind::Ulysses => "ulysses",
            ContextKind::Ring => "ring",
        }
    }
}

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

/// Each kind is written by its name, in messages as in documents.
macro_rules! display_by_name {
    ($($kind:ty),+) => {
        $(impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        })+
    };
}

display_by_name!(CheckpointingKind, ContextKind, Dtype, MemoryRule, ShardingKind);

#[cfg(test)]
mod tests {
    use serde::Serialize;

    use super::*;

    fn are_written_as_displayed<T: Serialize + fmt::Display>(kinds: &[T]) -> bool {
        kinds.iter().all(|kind| serde_json::to_string(kind).unwrap() == format!("\"{kind}\""))
    }

    #[test]
    fn documents_write_the_name() {
        assert!(are_written_as_displayed(&[ContextKind::Ulysses, ContextKind::Ring]));
        assert!(are_written_as_displayed(&[Dtype::Bfloat16, Dtype::Float32, Dtype::Float64]));
        assert!(are_written_as_displayed(&MemoryRule::ALL));
        assert!(are_written_as_displayed(&ShardingKind::ALL));
    }

    #[test]
    fn each_kind_is_found_by_its_name_alone() {
        assert!(CheckpointingKind::ALL.into_iter().all(|kind| CheckpointingKind::named(kind.name()) == Some(kind)));
        assert!(ShardingKind::ALL.into_iter().all(|kind| ShardingKind::named(kind.name()) == Some(kind)));
        for kind in [ContextKind::Ulysses, ContextKind::Ring] {
            assert_eq!(ContextKind::named(kind.name()), Some(kind));
        }
        assert_eq!(CheckpointingKind::named("some"), None);
        assert_eq!(ContextKind::named("Ring"), None);
        assert_eq!(ShardingKind::named("Gradients"), None);
    }
}
