//! The strategies that a search tries, and the first of them.

/// The limits of local search over strategies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalSearchBudget {
    /// Schemes of which strategies are made, those whose ranks have the greatest value. The bound covers all schemes.
    pub classes: usize,
    /// Schemes of which strategies are made, of those that admit the longest sequence but whose ranks have less value.
    pub wide_classes: usize,
    /// Denominator of a part of the linear programs of a bound, 1 or more: the part solved where a program has a part of
    /// the classes. The programs with whole long sequences then prove more.
    pub dual_solves_part: usize,
    /// Share of the time. The search does not improve a plan that is nearer to the bound, and does not plan a strategy
    /// whose possible gain is smaller.
    pub near: f64,
    /// Share of the iteration time. Shorter exposed transfers do not continue the search.
    pub exposed: f64,
    /// Share of the time. A plan that may be longer than the best one by more restarts the search.
    pub far: f64,
    /// Strategies planned by a restart, before local search, by the start where no initial strategy admits the longest
    /// sequence, and of those of equal replicas. With half as many, iterations at 500,000 tokens are 0.5 %
    /// longer.
    pub restarts: usize,
    /// Neighbours planned in each step. 2 to 4 give about the same iteration; 4 is slower.
    pub neighbours: usize,
    /// Sequences of all planned strategies together, beyond the first strategy. A batch with more than half of this
    /// number has no local search.
    pub planned_sequences: usize,
    /// Sequences assigned in each step to estimate neighbours. On 64 GPUs this number is enough for all neighbours.
    pub estimated_sequences: usize,
    /// Multiple of these sequences on ranks of several kinds. A value there is that of a replica on its best kind, so
    /// neighbours of about equal value differ more in time. With 1, iterations on mixed nodes are 0.6 to 2.6 % longer.
    pub estimated_on_kinds: usize,
    /// Plans whose micro-batches are merged at the end of a search, the shortest ones.
    pub merged: usize,
    /// Sequences of such plans together, if these are more plans and the best one is not yet near its bound: merging a plan of 50
    /// sequences gains up to 5 %.
    pub merged_sequences: usize,
    /// Share of the time. A plan that is longer than the best one by more is not merged.
    pub merge_gain: f64,
    /// Share of the iteration time. Shorter exposed transfers do not refine a strategy a second time.
    pub waiting: f64,
    /// Further partners of each scheme in the refinement of a strategy that is planned alone. If other strategies are
    /// planned too, the further partners make refinement 7 % longer and gain 0.003 % of the iteration.
    pub more_partners: usize,
}

impl LocalSearchBudget {
    /// The limits of both budgets.
    pub const ONLINE: LocalSearchBudget = LocalSearchBudget {
        classes: 24,
        wide_classes: 8,
        dual_solves_part: 2,
        near: 1e-3,
        exposed: 5e-3,
        far: 0.02,
        restarts: 8,
        neighbours: 3,
        planned_sequences: 40_000,
        estimated_sequences: 25_000,
        estimated_on_kinds: 6,
        merged: 4,
        merged_sequences: 4_000,
        merge_gain: 0.05,
        waiting: 2e-3,
        more_partners: 16,
    };
}

/// The limits of sizing, which opens replicas for the sequences of a batch until these end in time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SizingBudget {
    /// Share of the bound by which the first end is later than the bound. Each further step is twice as long.
    pub first_step: f64,
    /// Later ends tried. 5 steps reach 1.6 times the bound.
    pub steps: usize,
    /// Halvings of the interval of ends. 4 of them narrow it to a thousandth of the time.
    pub halvings: usize,
    /// Share of the ranks that may stay idle. With more idle ranks, earlier ends are tried.
    pub spare: f64,
    /// Share of the bound. The earliest end tried because of idle ranks.
    pub earliest: f64,
    /// Multiple of the least dual price. Sizing skips a replica with room if the sequence costs more there.
    pub dearest: f64,
    /// Number of long sequences on one replica up to which sizing packs the replica for each of them. Above this
    /// number, the estimate of one more sequence is good enough, and the packings would take quadratic work.
    pub packed_sequences: usize,
}

impl SizingBudget {
    /// The limits of both budgets.
    pub const ONLINE: SizingBudget = SizingBudget {
        first_step: 0.02,
        steps: 5,
        halvings: 4,
        spare: 0.02,
        earliest: 0.85,
        dearest: 2.0,
        packed_sequences: 32,
    };
}
