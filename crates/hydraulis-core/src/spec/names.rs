//! The display of kinds: each is written by its name, in messages as in documents.

use std::fmt;

use crate::spec::{CheckpointingKind, ContextKind, Dtype, MemoryRule, ShardingKind};

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
