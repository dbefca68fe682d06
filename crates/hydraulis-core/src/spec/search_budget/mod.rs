//! The numbers that limit a planner's work.
//!
//! The budget counts work, never time: the same budget gives the same plan on any machine. Every budget gives a valid
//! plan and a valid bound; a smaller one gives a longer iteration or a weaker bound. [`BalanceBudget`] limits the balancer,
//! which has no cost profile and no strategies. Tolerances of rounding and the constants of formulas are defined next to
//! their formulas.

mod balance;
mod bound;
mod capacity;
mod dispatch;
mod local_search;
mod survey;

pub use balance::{BalanceBudget, SlotBalanceBudget, StepBalanceBudget};
pub use bound::{BoundBudget, LongBudget};
pub use capacity::CapacityBudget;
pub use dispatch::{DispatchBudget, ExactBudget, FirstFitBudget, MergeBudget, PackingBudget, RefineBudget};
pub use local_search::{LocalSearchBudget, SizingBudget};
pub use survey::SurveyBudget;

/// The limits of a planner's work on one batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SearchBudget {
    /// Packings of replicas while one strategy is refined. On the 32B profile, 200,000 tokens and 64 GPUs, most
    /// strategies reach a local optimum within 300.
    pub refinements: usize,
    /// Strategies that a search dispatches and packs. The search always packs at least one, so that it returns a plan.
    pub candidates: usize,
    /// Linear programs solved for a bound, each with other whole numbers of replicas and micro-batches.
    pub dual_solves: usize,
    /// Planned exchanges between two batches of a lookahead, for each of its batches.
    pub exchanges: usize,
    /// The strategies that a search tries.
    pub local_search: LocalSearchBudget,
    /// The first strategy of a search.
    pub sizing: SizingBudget,
    /// The mixes of a few schemes that a search estimates.
    pub survey: SurveyBudget,
    /// The assignment of sequences to replicas.
    pub dispatch: DispatchBudget,
    /// The micro-batches of one replica.
    pub packing: PackingBudget,
    /// The linear programs of a bound.
    pub bound: BoundBudget,
    /// The linear programs of a pipeline's capacity.
    pub capacity: CapacityBudget,
    /// The sequences that two batches of a lookahead exchange.
    pub exchange: ExchangeBudget,
    /// The strategies of a whole run.
    pub run: RunBudget,
}

impl SearchBudget {
    /// The default: a training loop overlaps this work.
    pub const ONLINE: SearchBudget = SearchBudget {
        refinements: 1_000,
        candidates: 96,
        dual_solves: 24,
        exchanges: 8,
        local_search: LocalSearchBudget::ONLINE,
        sizing: SizingBudget::ONLINE,
        survey: SurveyBudget::ONLINE,
        dispatch: DispatchBudget::ONLINE,
        packing: PackingBudget::ONLINE,
        bound: BoundBudget::ONLINE,
        capacity: CapacityBudget::ONLINE,
        exchange: ExchangeBudget::ONLINE,
        run: RunBudget::ONLINE,
    };
    /// Work that mostly proves a plan to be within half a percent of the best one.
    pub const PROOF: SearchBudget =
        SearchBudget { refinements: 10_000, candidates: 192, dual_solves: 400, exchanges: 32, ..SearchBudget::ONLINE };
}

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

/// The limits of one exchange.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExchangeBudget {
    /// Sequences that leave a batch at once. If several sequences are equally long, moving one of them gains nothing.
    pub leaving: usize,
    /// Share of both iterations that an exchange must gain.
    pub gain: f64,
}

impl ExchangeBudget {
    /// The limits of both budgets.
    pub const ONLINE: ExchangeBudget = ExchangeBudget { leaving: 4, gain: 5e-3 };
}
