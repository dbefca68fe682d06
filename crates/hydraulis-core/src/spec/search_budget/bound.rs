//! The linear programs of a bound.

/// The limits of proving one time impossible.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BoundBudget {
    /// Linear programs without slots. The proven time rises quickly at first; most proofs take 3 to 5 programs.
    pub programs: usize,
    /// Share of the time. A smaller rise ends the programs without slots.
    pub rise: f64,
    /// Times tried with slots.
    pub probes: usize,
    /// Share of the time by which the first of these times is later. The step grows fourfold while proofs succeed.
    pub first_step: f64,
    /// Share of the time. A narrower interval of times ends the programs with slots.
    pub close: f64,
    /// Changes of basis in one program. Programs over 13 schemes take about 100.
    pub pivots: usize,
    /// Classes up to which a program has all of them.
    pub whole_classes: usize,
    /// Programs over a growing part of more classes.
    pub class_rounds: usize,
    /// Classes that join such a part at once.
    pub joining_classes: usize,
    /// Lengths whose cheapest classes are the first part.
    pub sampled_lengths: usize,
    /// Steps of the search for the prices of a class outside the part. Each narrows their interval by 0.62.
    pub price_steps: usize,
    /// Times for which the classes outside the part get prices.
    pub price_times: usize,
    /// Halvings of the interval around the latest time that given dual prices prove impossible.
    pub halvings: usize,
    /// Share of the time. A narrower interval around this latest time ends the halvings.
    pub halved_to: f64,
    /// Share of the time by which the first end of this interval is later than a proven one. The step doubles while
    /// proofs succeed.
    pub interval: f64,
    /// Number of a replica's micro-batches up to which the bound counts them one by one if empty ones may stand between
    /// others, even with fewer sequences. Filling a longer pipeline loses little.
    pub counted_micro_batches: usize,
    /// Weight of one micro-batch in the choice of a number to make whole, as a share of a replica's weight. On the 32B
    /// profile the fixed cost `c` is 1 to 4 % of an iteration.
    pub micro_batch_weight: f64,
    /// The programs with whole long sequences.
    pub long: LongBudget,
}

/// The limits of programs with whole long sequences.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LongBudget {
    /// Share of the time. A plan nearer to its bound has no such program.
    pub far: f64,
    /// Sequences of a batch. With more of them, few long ones decide nothing.
    pub sequences: usize,
    /// Groups of about equal lengths, the longest ones. With 16, programs do not end within their changes of basis.
    pub groups: usize,
    /// Share of the longest length. Shorter sequences are not long.
    pub share: f64,
    /// Share of a length by which the lengths of a group may be rounded down.
    pub rounded: f64,
    /// Classes with which a program over a part of many begins, those whose ranks have the greatest value.
    pub classes: usize,
    /// Classes of that part of those that admit the longest sequence but whose ranks have less value.
    pub wide_classes: usize,
    /// Programs over a growing part of many classes.
    pub class_rounds: usize,
    /// Classes that join such a part at once.
    pub joining_classes: usize,
    /// Patterns visited in the search for one. A longer search ends with an upper bound.
    pub patterns: usize,
    /// Sequences of a pattern. With more of them, the rest counts as divided.
    pub pattern_sequences: usize,
    /// Changes of basis in one program.
    pub pivots: usize,
    /// Times tried.
    pub probes: usize,
    /// Share of the time. A narrower interval of times ends the proof.
    pub close: f64,
    /// Branches evaluated at each time.
    pub nodes: usize,
}

impl LongBudget {
    /// The limits of both budgets.
    pub const ONLINE: LongBudget = LongBudget {
        far: 0.01,
        sequences: 2_000,
        groups: 10,
        share: 0.3,
        rounded: 2e-3,
        classes: 12,
        wide_classes: 3,
        class_rounds: 3,
        joining_classes: 4,
        patterns: 3_000,
        pattern_sequences: 24,
        pivots: 800,
        probes: 6,
        close: 2e-3,
        nodes: 4,
    };
}

impl BoundBudget {
    /// The limits of both budgets.
    pub const ONLINE: BoundBudget = BoundBudget {
        programs: 10,
        rise: 2e-4,
        probes: 8,
        first_step: 2e-3,
        close: 2e-3,
        pivots: 600,
        whole_classes: 16,
        class_rounds: 12,
        joining_classes: 6,
        sampled_lengths: 12,
        price_steps: 24,
        price_times: 4,
        halvings: 40,
        halved_to: 1e-5,
        interval: 0.01,
        counted_micro_batches: 48,
        micro_batch_weight: 0.02,
        long: LongBudget::ONLINE,
    };
}
