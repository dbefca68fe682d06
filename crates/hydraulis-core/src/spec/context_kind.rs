//! How the ranks of a context group let their tokens attend to each other.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The way in which a scheme's context parallelism exchanges what attention needs.
///
/// Time and memory of a scheme depend on it, so a cost profile says of each scheme with cp > 1 which one was
/// measured, and a plan hands that on to the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContextKind {
    /// Each rank attends with some of the heads, over all tokens: tokens and heads change places by all-to-all.
    Ulysses,
    /// Each rank attends with all heads of its own tokens, while keys and values go round from rank to rank.
    Ring,
}

impl ContextKind {
    /// The kind of that name.
    pub fn named(text: &str) -> Option<ContextKind> {
        [ContextKind::Ulysses, ContextKind::Ring].into_iter().find(|kind| kind.name() == text)
    }

    /// The name, as documents write it.
    pub fn name(self) -> &'static str {
        match self {
            ContextKind::Ulysses => "ulysses",
            ContextKind::Ring => "ring",
        }
    }
}

impl fmt::Display for ContextKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_write_the_name() {
        for kind in [ContextKind::Ulysses, ContextKind::Ring] {
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{kind}\""));
            assert_eq!(ContextKind::named(kind.name()), Some(kind));
        }
        assert_eq!(ContextKind::named("Ring"), None);
    }
}
