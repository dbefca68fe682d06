//! The set of replicas of one iteration.

use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Grouped, Result, StrategyError};
use crate::spec::Scheme;

/// Largest number of replicas, above the number of ranks of any cluster. The limit refuses a typing error such as
/// `1000000000x<1>`.
const MAX_REPLICAS: usize = 1 << 20;

/// A multiset of replicas, each with its own scheme, written `1x<tp16>+12x<tp4,pp2>`.
///
/// The replicas have one canonical order: widest stages first, longer pipelines before shorter ones, less
/// checkpointing before more, and layers split by cost before stated splits. With this order, equal multisets are equal values, and placing replicas in order keeps
/// their stage groups aligned.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Strategy {
    schemes: Vec<Scheme>,
}

impl Strategy {
    /// The strategy with these replicas, at least one.
    pub fn new(mut schemes: Vec<Scheme>) -> Result<Strategy> {
        if schemes.is_empty() || schemes.len() > MAX_REPLICAS {
            let why =
                format!("it has {} replicas, the limit is 1 to {}", Grouped(schemes.len()), Grouped(MAX_REPLICAS));
            return Err(StrategyError::Syntax { text: String::new(), why }.into());
        }
        schemes.sort_by_key(|scheme| {
            Reverse((
                scheme.stage_group_ranks(),
                scheme.pp(),
                scheme.tp(),
                Reverse((scheme.layer_plan(), scheme.split())),
            ))
        });
        Ok(Strategy { schemes })
    }

    /// The scheme of each replica.
    pub fn schemes(&self) -> &[Scheme] {
        &self.schemes
    }

    /// Ranks of all replicas together, at most `u64::MAX`.
    pub fn ranks(&self) -> u64 {
        self.schemes.iter().fold(0, |ranks, scheme| ranks.saturating_add(scheme.ranks()))
    }

    /// Each distinct scheme with its number of replicas, in order.
    pub fn groups(&self) -> Vec<(Scheme, usize)> {
        let runs = self.schemes.chunk_by(|one, other| one == other);
        runs.map(|run| (run[0], run.len())).collect()
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups: Vec<String> = self.groups().iter().map(|(scheme, n)| format!("{n}x{scheme}")).collect();
        f.write_str(&groups.join("+"))
    }
}

impl FromStr for Strategy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Strategy> {
        let wrong = |why: String| Error::from(StrategyError::Syntax { text: text.into(), why });
        let mut schemes = Vec::new();
        for group in text.split('+').map(str::trim) {
            let (number, scheme) = match group.split_once('x') {
                Some((number, scheme)) => {
                    (number.trim().parse().map_err(|_| wrong(format!("'{number}' is no count")))?, scheme)
                }
                None => (1, group),
            };
            if number == 0 || number > MAX_REPLICAS - schemes.len() {
                return Err(wrong(format!("the count {} is outside 1 to {}", Grouped(number), Grouped(MAX_REPLICAS))));
            }
            let scheme: Scheme = scheme.parse().map_err(|error| match error {
                Error::Strategy(StrategyError::SchemeSyntax { text, why }) => wrong(format!("'{text}': {why}")),
                other => other,
            })?;
            schemes.extend(std::iter::repeat_n(scheme, number));
        }
        Strategy::new(schemes)
    }
}

impl TryFrom<String> for Strategy {
    type Error = Error;
    fn try_from(text: String) -> Result<Strategy> {
        text.parse()
    }
}

impl From<Strategy> for String {
    fn from(strategy: Strategy) -> String {
        strategy.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips_in_canonical_order() {
        let strategy: Strategy = "12x<tp4,pp2>+<tp16>+2x<pp4>+2x<cp2,tp4>+1x<tp4>+1x<cp4>+3x<cp8>".parse().unwrap();
        assert_eq!(strategy.to_string(), "1x<tp16>+2x<tp4,cp2>+3x<cp8>+12x<tp4,pp2>+1x<tp4>+1x<cp4>+2x<pp4>");
        assert_eq!(strategy.to_string().parse::<Strategy>().unwrap(), strategy);
        let kinds: Strategy = "1x<tp2,full>+1x<tp2>+2x<1,selective>+1x<tp2,full>+1x<1>".parse().unwrap();
        assert_eq!(kinds.to_string(), "1x<tp2>+2x<tp2,full>+1x<1>+2x<1,selective>");
        assert_eq!(strategy.ranks(), 16 + 2 * 8 + 3 * 8 + 12 * 8 + 4 + 4 + 2 * 4);
    }

    #[test]
    fn ranks_beyond_any_number_are_the_greatest_number() {
        let strategy: Strategy = "524288x<tp32768,cp32768,pp32768>".parse().unwrap();
        assert_eq!(strategy.ranks(), u64::MAX);
    }

    #[test]
    fn another_text_is_refused() {
        for text in ["", "+", "0x<tp4>", "x<tp4>", "2x", "-1x<1>", "2x<tp4>+", "99999999999x<1>", "9999999x<1>"] {
            assert_eq!(text.parse::<Strategy>().unwrap_err().code(), "strategy_invalid", "{text}");
        }
    }
}
