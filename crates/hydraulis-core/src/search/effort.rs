//! How much a planner looks at, counted in work: the same on any machine.

/// Replicas packed anew while one strategy is refined. On the 32B profile, 200,000 tokens and 64 GPUs, most
/// strategies reach a local optimum within 300.
const REFINEMENTS: usize = 1_000;

/// The limits of a planner's work on one batch.
///
/// Any limits give a valid plan and a valid bound; lower ones give a longer iteration, or a weaker bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Replicas packed anew while one strategy is refined.
    pub refinements: usize,
    /// Strategies planned by a search.
    pub attempts: usize,
    /// Markets looked at for a bound: how often replicas and micro-batches are made whole.
    pub markets: usize,
    /// Exchanges between two batches of a planning window that are planned, for each of its batches.
    pub exchanges: usize,
}

impl Effort {
    /// What a training loop does not notice.
    pub const ONLINE: Effort = Effort { refinements: REFINEMENTS, attempts: 24, markets: 24, exchanges: 8 };
    /// What it takes to prove plans within half a percent of the best, most of the time.
    pub const PROOF: Effort = Effort { refinements: 10 * REFINEMENTS, attempts: 64, markets: 400, exchanges: 32 };
}
