//! The activations that a rank computes again for the backward instead of saving them.
//!
//! Part of a scheme: one kind for all layers of a replica. `none` saves all activations, `full` a layer's input,
//! `selective` attention and the results of matrix products. Times, the forward's share and caps depend on the kind,
//! so in a profile the same degrees under another kind are another scheme. Gradients do not depend on it.

use std::fmt;

/// The way in which every decoder layer of a replica is checkpointed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CheckpointingKind {
    /// Everything that the backward pass needs is kept.
    None,
    /// Of a layer its input, attention, and the results of matrix products are kept; what is cheap is computed again.
    Selective,
    /// Of a layer its input alone is kept; its forward pass runs again.
    Full,
}

impl CheckpointingKind {
    /// All kinds, the more is computed again the later.
    pub const ALL: [CheckpointingKind; 3] =
        [CheckpointingKind::None, CheckpointingKind::Selective, CheckpointingKind::Full];

    /// The kind of that name.
    pub fn named(name: &str) -> Option<CheckpointingKind> {
        CheckpointingKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The name, as schemes write it.
    pub fn name(self) -> &'static str {
        match self {
            CheckpointingKind::None => "none",
            CheckpointingKind::Selective => "selective",
            CheckpointingKind::Full => "full",
        }
    }
}

impl fmt::Display for CheckpointingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_found_by_its_name_alone() {
        for kind in CheckpointingKind::ALL {
            assert_eq!(CheckpointingKind::named(kind.name()), Some(kind));
        }
        assert_eq!(CheckpointingKind::named("some"), None);
    }
}
