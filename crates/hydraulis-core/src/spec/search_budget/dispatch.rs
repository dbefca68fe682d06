//! The assignment of sequences to replicas.

/// The limits of dispatch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DispatchBudget {
    /// Replicas of each scheme compared for a sequence, the earliest to end first. One that ends later may have room in a
    /// micro-batch and so be the better place.
    pub compared_replicas: usize,
    /// Share of the length. The estimates of unassigned work are updated whenever sequences are shorter by this share.
    pub reweighing: f64,
    /// Part of all tokens, one in this number, 1 or more. The shortest sequences with this part are assigned again to rebalance
    /// replicas: on long-tailed lengths a third of all sequences.
    pub rebalanced_part: u64,
    /// Moves and swaps.
    pub refine: RefineBudget,
    /// Micro-batches that are merged.
    pub merge: MergeBudget,
}

/// The limits of moves and swaps away from the slowest replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefineBudget {
    /// Changes tried by packing, for each change of the slowest replica.
    pub tries: usize,
    /// Other replicas of each scheme considered, the earliest to end first. One that ends later may admit sequences that
    /// the others refuse.
    pub partners: usize,
}

/// The limits of merging micro-batches where replicas have no pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeBudget {
    /// Sequences of all further assignments together: 40 assignments of 600 sequences, none of 100,000.
    pub assigned_sequences: usize,
    /// Packings of replicas while such an assignment is refined. Ten times as many gain nothing.
    pub refinements: usize,
    /// The same where replicas have pipelines, whose packing takes 30 times as long.
    pub pipeline_refinements: usize,
}

impl DispatchBudget {
    /// The limits of both budgets.
    pub const ONLINE: DispatchBudget = DispatchBudget {
        compared_replicas: 8,
        reweighing: 0.125,
        rebalanced_part: 20,
        refine: RefineBudget { tries: 12, partners: 4 },
        merge: MergeBudget { assigned_sequences: 25_000, refinements: 100, pipeline_refinements: 20 },
    };
}
