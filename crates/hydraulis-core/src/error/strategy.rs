//! What strategies and their schemes refuse.

use thiserror::Error;

use crate::error::Grouped;
use crate::spec::Scheme;

/// An error of a strategy, or of a list of them.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StrategyError {
    /// Text that is no scheme.
    #[error("'{text}' is no scheme ({why}): write <1>, <tp4> or <tp4,pp2>, degrees from 1 to 65,535")]
    SchemeSyntax {
        /// What was given.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// Text that is no strategy.
    #[error(
        "'{text}' is no strategy ({why}): write replicas as COUNTxSCHEME joined by '+', such as 1x<tp16>+12x<tp4,pp2>"
    )]
    Syntax {
        /// What was given.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// No strategy to choose from.
    #[error("no strategies were given: give at least one, or leave the list out to take the profile's own")]
    NoneGiven,
    /// More ranks than there are.
    #[error(
        "strategy {strategy} needs {needed} GPUs, the cluster has {gpus}: remove replicas, or take more GPUs; training has as many as it has ranks",
        needed = Grouped(.needed),
        gpus = Grouped(.gpus)
    )]
    TooLarge {
        /// The strategy.
        strategy: String,
        /// GPUs it needs.
        needed: u64,
        /// GPUs there are.
        gpus: u32,
    },
    /// Every scheme of a profile needs more ranks than there are.
    #[error(
        "every scheme of cost profile '{profile}' needs more GPUs than the {gpus} of the cluster (the smallest is {smallest}, with {needed}): plan for a larger cluster, or take a profile that has smaller schemes",
        needed = Grouped(.needed),
        gpus = Grouped(.gpus)
    )]
    SchemesTooWide {
        /// The profile.
        profile: String,
        /// The scheme of fewest ranks.
        smallest: Scheme,
        /// GPUs it needs.
        needed: u64,
        /// GPUs there are.
        gpus: u32,
    },
    /// Enough ranks, but not in aligned blocks.
    #[error(
        "replica {replica} ({scheme}) of strategy {strategy} finds no {block} aligned free ranks for a stage: the tp x cp ranks of a stage lie inside one node of {gpus_per_node}, or on whole nodes; use degrees that divide the node"
    )]
    PlacementFailed {
        /// The strategy.
        strategy: String,
        /// Position of the replica.
        replica: usize,
        /// Its scheme.
        scheme: Scheme,
        /// Ranks of one of its stages.
        block: u32,
        /// GPUs of a node.
        gpus_per_node: u32,
    },
    /// A run that may use no strategy, or that used more than it may.
    #[error("a run of at most {most} strategies used {used}: the limit is at least 1 and those used; raise it")]
    Limit {
        /// Most strategies of the run.
        most: usize,
        /// Strategies used so far.
        used: usize,
    },
}
