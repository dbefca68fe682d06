//! The kinds of attention between the tokens of a context group's ranks.

use serde::{Deserialize, Serialize};

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
