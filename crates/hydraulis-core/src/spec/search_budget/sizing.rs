//! The first strategy of a search.

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
