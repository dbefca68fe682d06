//! The linear programs of a pipeline's capacity.

/// The limits of the table of pipeline capacities and of the best number of micro-batches. Each count is 1 or more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CapacityBudget {
    /// Changes of basis for each micro-batch of a program.
    pub pivots: usize,
    /// Numbers of micro-batches with their own program. Above this number, bounds count only the slowest stage's own
    /// work, and estimates scale the capacity of this number.
    pub tabulated_counts: usize,
    /// Fixed shares `c / T` of 1/2, 1/4, ... with their own program. The two programs around a share are valid for it
    /// within 0.05 % if the number of micro-batches suits the share.
    pub tabulated_shares: usize,
    /// Number of micro-batches beyond which only every other share has a program. Their programs take longest, are less
    /// exact, and mostly show that fewer micro-batches are better.
    pub dense_counts: usize,
    /// Most micro-batches compared for the best number, unless memory asks for more: on 8 stages they leave a bubble of
    /// less than 1 %. A cost without a fixed part would have no best number.
    pub most_micro_batches: usize,
    /// Denominator of the part of a large number of micro-batches by which compared numbers are apart. Times hardly
    /// change from one number to the next.
    pub spacing: usize,
    /// Worse numbers of micro-batches skipped before the comparison ends.
    pub worse_counts: usize,
    /// Tolerances up to each number of micro-batches: a program ends when the work that it proves is greater than that
    /// of known times by a smaller share. Programs of more micro-batches take longer, and few replicas have them.
    pub tolerances: [(usize, f64); 3],
    /// Point at which a program seeks paths, as a share of the way from its own times to the best known times.
    pub near: f64,
    /// Share of the tolerance by which a path must be longer than the end to enter a program. A program without such a
    /// path ends.
    pub violated: f64,
    /// Micro-batches at either end that have rows of their own in a coarse program, whose times begin the search.
    pub coarse_ends: usize,
    /// Neighbouring micro-batches in the middle that share a row of the coarse program.
    pub coarse_width: usize,
    /// Amounts of work per doubling that have their own best number of micro-batches. Times between them are
    /// interpolated.
    pub work_steps: usize,
    /// Doublings of the least tabulated amount of work. 20 of them reach about 10^6 times this amount.
    pub work_doublings: usize,
    /// Denominator of the part of a full micro-batch's work that is the least tabulated amount, if the fixed cost of a
    /// micro-batch is smaller.
    pub least_work_part: usize,
    /// Time of a pipeline's slowest stage over the mean of its stages, from which bounds over every placement count the
    /// slowest stage alone.
    pub uneven: f64,
    /// Most levels of speed, into which the bound groups a cluster's ranks. If the ranks have more rates, the bound
    /// counts the slower ranks of a level as its fastest.
    pub speed_levels: usize,
}

impl CapacityBudget {
    /// The limits of both budgets.
    pub const ONLINE: CapacityBudget = CapacityBudget {
        pivots: 40,
        tabulated_counts: 64,
        tabulated_shares: 14,
        dense_counts: 32,
        most_micro_batches: 1_024,
        spacing: 32,
        worse_counts: 3,
        tolerances: [(16, 2e-4), (32, 5e-4), (usize::MAX, 3e-3)],
        near: 0.95,
        violated: 0.1,
        coarse_ends: 8,
        coarse_width: 4,
        work_steps: 4,
        work_doublings: 20,
        least_work_part: 1_024,
        uneven: 1.3,
        speed_levels: 4,
    };
}
