//! Errors of strategies and their schemes.

use std::fmt;

use thiserror::Error;

use crate::error::Grouped;
use crate::spec::{Scheme, Strategy};

/// The strategies that might admit a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admitting {
    /// This strategy.
    Strategy(Strategy),
    /// One of a list with this number of strategies.
    AnyOf(usize),
    /// Any at all.
    Any,
}

impl fmt::Display for Admitting {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Admitting::Strategy(strategy) => write!(f, "strategy {strategy}"),
            Admitting::AnyOf(count) => write!(f, "any of the {count} strategies"),
            Admitting::Any => f.write_str("any strategy"),
        }
    }
}

/// An error of a strategy or a list of strategies.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StrategyError {
    /// A text is no scheme.
    #[error("'{text}' is no scheme ({why}): write <1>, <tp4> or <tp4,pp2>, degrees from 1 to 65,535")]
    SchemeSyntax {
        /// The text.
        text: String,
        /// Cause of the refusal.
        why: String,
    },
    /// A text is no strategy.
    #[error(
        "'{text}' is no strategy ({why}): write replicas as COUNTxSCHEME joined by '+', such as 1x<tp16>+12x<tp4,pp2>"
    )]
    Syntax {
        /// The text.
        text: String,
        /// Cause of the refusal.
        why: String,
    },
    /// The list of strategies is empty.
    #[error("no strategies were given: give at least one, or leave the list out to use the profile's own")]
    NoneGiven,
    /// A strategy needs more GPUs than the cluster has.
    #[error(
        "strategy {strategy} needs {needed} GPUs, the cluster has {gpus}: remove replicas, or use more GPUs; training has as many GPUs as ranks",
        needed = Grouped(.needed),
        gpus = Grouped(.gpus)
    )]
    TooLarge {
        /// The strategy.
        strategy: String,
        /// GPUs of the strategy.
        needed: u64,
        /// GPUs of the cluster.
        gpus: u32,
    },
    /// Every scheme of a profile needs more GPUs than the cluster has.
    #[error(
        "every scheme of cost profile '{profile}' needs more GPUs than the {gpus} of the cluster (the smallest is {smallest}, with {needed}): use a larger cluster, or a profile with smaller schemes",
        needed = Grouped(.needed),
        gpus = Grouped(.gpus)
    )]
    SchemesTooWide {
        /// Name of the profile.
        profile: String,
        /// Scheme with the fewest ranks.
        smallest: Scheme,
        /// GPUs of that scheme.
        needed: u64,
        /// GPUs of the cluster.
        gpus: u32,
    },
    /// The cluster has enough free ranks, but not in aligned groups.
    #[error(
        "replica {replica} ({scheme}) of strategy {strategy} finds no {stage_group} aligned free ranks for a stage: the tp x cp ranks of a stage lie inside one node of {gpus_per_node}, or on whole nodes; use degrees that divide the node"
    )]
    PlacementFailed {
        /// The strategy.
        strategy: String,
        /// Position of the replica.
        replica: usize,
        /// Scheme of the replica.
        scheme: Scheme,
        /// Ranks of one of its stages.
        stage_group: u32,
        /// GPUs of a node.
        gpus_per_node: u32,
    },
    /// The limit on a run's strategies is 0 or below the number of strategies used.
    #[error(
        "max_strategies is {most} and the run used {used} strategies: the limit is at least 1 and at least the number used; raise it"
    )]
    Limit {
        /// Limit on the run's strategies.
        most: usize,
        /// Strategies used so far.
        used: usize,
    },
}
