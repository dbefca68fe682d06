//! The ways in which ranks hold gradients until their owners have them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The way in which a run's ranks hold gradients.
///
/// Memory and transfers depend on it. Therefore a cost profile states the kind, and training refuses the profile of
/// another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GradientKind {
    /// A rank holds the gradients of its whole stage, which leave for their owners once, during its last backward.
    #[default]
    Whole,
    /// A rank holds the gradients of two buckets, which leave for their owners after each micro-batch. Schemes have no
    /// pipeline stages.
    Sharded,
}

impl GradientKind {
    /// The kind's name in documents.
    pub fn name(self) -> &'static str {
        match self {
            GradientKind::Whole => "whole",
            GradientKind::Sharded => "sharded",
        }
    }

    /// Whether gradients leave once.
    pub fn is_whole(&self) -> bool {
        *self == GradientKind::Whole
    }
}

impl fmt::Display for GradientKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_write_the_name() {
        for kind in [GradientKind::Whole, GradientKind::Sharded] {
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{kind}\""));
        }
        assert!(GradientKind::default().is_whole());
    }
}
