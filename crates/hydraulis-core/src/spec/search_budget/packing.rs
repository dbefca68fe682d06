//! The micro-batches of one replica.

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
}

impl PackingBudget {
    /// The limits of both budgets.
    pub const ONLINE: PackingBudget = PackingBudget { swaps: 1_000, counts: 3, spacing: 20, stall: 0.7 };
}
