//! The strategies of a whole run.

/// The limits of decisions over several batches: the distinct strategies of a limited run, and a proposal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunBudget {
    /// Share of the step by which the last admitted strategy of a limited run must be shorter than the best used one.
    /// With `n` strategies left, a new one must be shorter by an `n`th of this share. On seven runs a twelfth to a sixth
    /// gave equal times. With an equal share of 1 or 2 % for each strategy, a limit of 8 cost up to 3 %.
    pub last_gain: f64,
    /// Batches that a proposal draws for each given batch. With 7 in place of 3, the lists were no better on other
    /// batches.
    pub drawn_batches: usize,
    /// Seed of the draw. Any constant serves.
    pub draw_seed: u64,
}

impl RunBudget {
    /// The limits of both budgets.
    pub const ONLINE: RunBudget = RunBudget { last_gain: 0.1, drawn_batches: 3, draw_seed: 0 };
}
