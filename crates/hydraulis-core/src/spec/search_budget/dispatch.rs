//! The assignment of sequences to replicas, and the micro-batches of one replica.

/// The limits of dispatch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DispatchBudget {
    /// Replicas of each scheme compared for a sequence, in ascending order of their end. A replica that ends later may
    /// be the better choice, because one of its micro-batches has room.
    pub compared_replicas: usize,
    /// Share of the length. The estimates of unassigned work are updated whenever sequences are shorter by this share.
    pub reweighing: f64,
    /// Denominator, 1 or more, of a part of all tokens. The shortest sequences with this part of the tokens are
    /// assigned again to rebalance replicas. With long-tailed lengths they are a third of all sequences.
    pub rebalanced_part: u64,
    /// The limits of moves and swaps.
    pub refine: RefineBudget,
    /// The limits of trying every assignment.
    pub exact: ExactBudget,
    /// The limits of first fit.
    pub first_fit: FirstFitBudget,
    /// The limits of merging micro-batches.
    pub merge: MergeBudget,
}

/// The limits of moves and swaps away from the slowest replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefineBudget {
    /// Changes tried by packing, for each change of the slowest replica.
    pub tries: usize,
    /// Other replicas of each scheme evaluated, in ascending order of their end. A replica that ends later may admit
    /// sequences that the others refuse.
    pub partners: usize,
    /// Most sequences of a batch for each replica at which three replicas exchange sequences. With many sequences, swaps fit,
    /// and exchanges would take a tenth of the planning time.
    pub exchanging: usize,
}

/// The limits of trying every assignment of few sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExactBudget {
    /// Most sequences of a batch. Of more sequences the budget of nodes reaches only the last ones.
    pub sequences: usize,
    /// Partial assignments tried for one strategy.
    pub nodes: usize,
}

/// The limits of first fit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FirstFitBudget {
    /// Most sequences of a batch for each replica.
    pub sequences_per_replica: usize,
    /// Share of the latest end. The earliest end tried.
    pub earliest: f64,
    /// Share of an assignment's time that another one by first fit must gain.
    pub gain: f64,
    /// Halvings of the interval of ends.
    pub halvings: usize,
}

/// The limits of merging micro-batches of replicas without a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeBudget {
    /// Sequences of all further assignments together: 40 assignments of 600 sequences, none of 100,000.
    pub assigned_sequences: usize,
    /// Packings of replicas while such an assignment is refined. Ten times this number gains nothing.
    pub refinements: usize,
    /// Packings of replicas with pipelines while such an assignment is refined. Each packing takes 30 times as long.
    pub pipeline_refinements: usize,
    /// Denominator, 1 or more, of the part of a cap that stays free. First-fit decreasing leaves a smaller part if short
    /// sequences exist.
    pub free_part: u64,
}

impl DispatchBudget {
    /// The limits of both budgets.
    pub const ONLINE: DispatchBudget = DispatchBudget {
        compared_replicas: 8,
        reweighing: 0.125,
        rebalanced_part: 20,
        refine: RefineBudget { tries: 12, partners: 4, exchanging: 4 },
        first_fit: FirstFitBudget { sequences_per_replica: 4, earliest: 0.85, gain: 2e-3, halvings: 4 },
        exact: ExactBudget { sequences: 24, nodes: 20_000 },
        merge: MergeBudget { assigned_sequences: 25_000, refinements: 100, pipeline_refinements: 20, free_part: 1_024 },
    };
}

/// The limits of packing a replica with a pipeline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PackingBudget {
    /// Pair swaps tried in the final order of micro-batches: two full passes over 32 micro-batches.
    pub swaps: usize,
    /// Numbers of micro-batches tried on each side of the estimated best one.
    pub counts: usize,
    /// Denominator, 1 or more, of the part of the best number by which the larger numbers tried are apart. If memory
    /// requires many micro-batches, the fewest of them are completely full, and their times cannot rise and fall. On
    /// `<pp8>` with 90 to 300 micro-batches, wide steps give 1 to 1.5 % shorter times than the next three numbers.
    pub spacing: usize,
    /// Share of the excess of a sequence over the longest micro-batch of the best shape, by which the estimate delays
    /// every other stage. The excess overlaps with other long sequences. On the 32B table and long-tailed lengths plans
    /// are equally short with 0.5 to 0.8, and longer with 1 and more.
    pub stall: f64,
    /// Slope of the times of micro-batches after one that takes longer than all others: they fall evenly, and would reach
    /// this share of the first of them one place after the last. On 2 and 4 stages 0 to 0.3 end within 3 % of the optimum,
    /// 0.5 and 0.7 within 5 and 6 %.
    pub fall: f64,
}

impl PackingBudget {
    /// The limits of both budgets.
    pub const ONLINE: PackingBudget = PackingBudget { swaps: 1_000, counts: 3, spacing: 20, stall: 0.7, fall: 0.2 };
}
