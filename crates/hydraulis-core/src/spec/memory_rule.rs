//! The rules by which memory limits the micro-batches of a pipeline.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The rule by which micro-batches fit into memory.
///
/// Under 1F1B, stage `j` of `p` holds `min(v, p - j)` consecutive micro-batches at once. Therefore a pipeline of even
/// stages has room for a long micro-batch next to short ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryRule {
    /// The per-micro-batch limit: no micro-batch exceeds the scheme's token cap, so `p` micro-batches always fit.
    #[default]
    PerMicroBatch,
    /// The in-flight limit: any `p` consecutive micro-batches have at most `p` token caps together. If a stage has no
    /// room for that many tokens of one micro-batch, or its room is unknown, no micro-batch exceeds the token cap.
    InFlight,
}

impl MemoryRule {
    /// Every rule.
    pub const ALL: [MemoryRule; 2] = [MemoryRule::PerMicroBatch, MemoryRule::InFlight];

    /// The rule's name in documents.
    pub fn name(self) -> &'static str {
        match self {
            MemoryRule::PerMicroBatch => "per_micro_batch",
            MemoryRule::InFlight => "in_flight",
        }
    }
}

impl FromStr for MemoryRule {
    type Err = Error;

    fn from_str(text: &str) -> Result<MemoryRule> {
        let named = MemoryRule::ALL.into_iter().find(|rule| rule.name() == text);
        named.ok_or_else(|| Error::MemoryRule { text: text.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_by_name() {
        for rule in MemoryRule::ALL {
            assert_eq!(rule.name().parse::<MemoryRule>().unwrap(), rule);
        }
        assert_eq!(MemoryRule::default(), MemoryRule::PerMicroBatch);
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let error = "Cap".parse::<MemoryRule>().unwrap_err();
        assert_eq!(error.code(), "argument_invalid");
        let text = error.to_string();
        assert!(text.contains("'Cap'") && text.contains("'per_micro_batch'") && text.contains("'in_flight'"), "{text}");
    }
}
