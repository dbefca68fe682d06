//! Which activations a rank computes again for the backward pass instead of keeping them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The way in which every decoder layer of a run is checkpointed.
///
/// Time and memory of all schemes depend on it, so a cost profile says under which one it was measured, and the
/// ranks must run under the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointingKind {
    /// Everything that the backward pass needs is kept.
    None,
    /// Of a layer its input, attention, and the results of matrix products are kept; what is cheap is computed again.
    Selective,
    /// Of a layer its input alone is kept; its forward pass runs again.
    Full,
}

impl CheckpointingKind {
    /// The name, as documents write it.
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
    fn documents_write_the_name() {
        for kind in [CheckpointingKind::None, CheckpointingKind::Selective, CheckpointingKind::Full] {
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{kind}\""));
        }
    }
}
