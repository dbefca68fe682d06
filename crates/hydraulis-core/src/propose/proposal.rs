//! The proposal of strategies for a distribution of lengths.
//!
//! Candidates are the strategies that a search finds for the given batches, and for more batches drawn from all their
//! sequences: a few batches do not show every combination of long sequences in a run. On 50 lognormal batches with at
//! most one sequence above 24,704 tokens, a list of eight strategies cost nothing. On 50 others it cost 2.3 %,
//! because one of those had two such sequences; with 150 drawn batches added, it cost 0.25 %.

use std::num::NonZeroUsize;

use crate::batch::{Batch, LengthHistogram};
use crate::cancellation::Cancellation;
use crate::error::{Error, Result};
use crate::plan::Extrapolation;
use crate::propose::choose::{Choice, fastest};
use crate::search::{Planner, Times};
use crate::spec::{RunBudget, Strategy};
use crate::units::{Millis, Tokens, count};

/// The request for a proposal.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Batches drawn from the distribution; they represent the batches of the run.
    pub batches: &'a [Batch],
    /// Greatest number of strategies in the list.
    pub count: NonZeroUsize,
    /// Longest sequence that the list has to admit. The longest sequence of the batches replaces an absent or shorter
    /// value.
    pub context: Option<Tokens>,
}

/// The progress of a proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The searches of some batches have ended, and the next one begins, if any remains.
    Searched {
        /// Number of searched batches.
        batches: usize,
        /// Number of all batches.
        of: usize,
    },
    /// This number of strategies has been chosen, and the choice evaluates another one.
    Chosen(usize),
}

/// A short list of strategies, and its cost against a search for each batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    /// The strategies, in an order in which every prefix of the list serves well too.
    pub strategies: Vec<Proposed>,
    /// Mean step over all batches, given and drawn, when each is searched for alone. Without a link a step is the
    /// iteration.
    pub search_ms: Millis,
    /// Longest sequence that the list admits.
    pub longest_admitted: Tokens,
    /// The furthest extrapolation beyond the profile's measurements in the plans of all batches under the list;
    /// `None` if there is no extrapolation.
    pub extrapolation: Option<Extrapolation>,
    /// Number of strategies among which the proposal chose.
    pub candidates: usize,
    /// Number of the candidates' times on the batches that were computed; bounds ruled out the others.
    pub timed: usize,
}

/// One strategy of a proposal.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposed {
    /// The strategy.
    pub strategy: Strategy,
    /// The given batches for which this strategy is the fastest of the list.
    pub batches: Vec<usize>,
    /// Share of all batches, given and drawn, for which this strategy is the fastest of the list.
    pub share: f64,
    /// Mean step over all batches with this strategy and those before it.
    pub expected_ms: Millis,
}

impl Proposal {
    /// Mean step over all batches with the whole list.
    pub fn expected_ms(&self) -> Millis {
        self.strategies.last().map(|last| last.expected_ms).unwrap_or_default()
    }

    /// The cost of the list against a search for each batch: `expected / search - 1`.
    pub fn cost(&self) -> f64 {
        self.expected_ms().0 / self.search_ms.0 - 1.0
    }
}

/// Chooses up to `request.count` strategies for the planner's cluster. The choice keeps the mean iteration over the
/// batches, given and drawn, shortest when each runs under the fastest strategy; with a link it keeps the mean step
/// shortest.
///
/// At least one strategy of the list admits the longest sequence, so every batch can run. The proposal calls `report`
/// at each step and `cancellation` within the steps; an error from either ends the proposal.
///
/// # Errors
///
/// The proposal refuses an empty list of batches, and a sequence or a context that no strategy admits.
pub fn propose(
    planner: &Planner,
    request: &Request,
    cancellation: Cancellation,
    report: &mut dyn FnMut(Progress) -> Result<()>,
) -> Result<Proposal> {
    if request.batches.is_empty() {
        return Err(Error::NoBatches);
    }
    let longest = longest(planner, request)?;
    let batches = [request.batches.to_vec(), drawn(request.batches, planner.budget().run, cancellation)?].concat();
    let found = Found::search(planner, &batches, longest, cancellation, report)?;
    let mut times = Times::new(planner, &batches, found.candidates, cancellation);
    let admits_longest = times.strategies().iter().map(|one| planner.admitted_by(one) >= longest).collect();
    let mut weigh = |chosen| report(Progress::Chosen(chosen));
    let chosen = Choice { admits_longest, cancellation: &mut weigh }.choose(&mut times, request.count.get())?;
    let plans = fastest(&mut times, &chosen)?;
    let extrapolations =
        plans.iter().enumerate().filter_map(|(batch, &(_, strategy))| times.extrapolation(strategy, batch));
    let extrapolation = Extrapolation::furthest(extrapolations);
    let admitted = chosen.iter().map(|&one| planner.admitted_by(&times.strategies()[one]));
    Ok(Proposal {
        longest_admitted: admitted.max().unwrap_or_default(),
        strategies: proposed(&mut times, &chosen, request.batches.len())?,
        search_ms: found.search_ms,
        extrapolation,
        candidates: times.strategies().len(),
        timed: times.computed(),
    })
}

/// The longest sequence that the list must admit.
fn longest(planner: &Planner, request: &Request) -> Result<Tokens> {
    let (context, limit) = (request.context.unwrap_or_default(), planner.longest_admitted());
    if context > limit {
        return Err(Error::ContextTooLong { context, limit });
    }
    Ok(request.batches.iter().map(|batch| batch.longest().1).fold(context, Tokens::max))
}

/// More batches with the given batches' mean number of tokens; their sequences are drawn from those of all batches.
fn drawn(given: &[Batch], budget: RunBudget, cancellation: Cancellation) -> Result<Vec<Batch>> {
    let lengths: Vec<i64> = given.iter().flat_map(Batch::tokens).copied().map(length).collect();
    let tokens: Tokens = given.iter().map(Batch::total_tokens).sum();
    let mean = Tokens(tokens.0 / given.len() as u64);
    LengthHistogram::new(&lengths, None)?.sample(
        mean,
        budget.drawn_batches * given.len(),
        budget.draw_seed,
        cancellation,
    )
}

/// The result of the searches.
struct Found {
    candidates: Vec<Strategy>,
    search_ms: Millis,
}

impl Found {
    fn search(
        planner: &Planner,
        batches: &[Batch],
        longest: Tokens,
        cancellation: Cancellation,
        report: &mut dyn FnMut(Progress) -> Result<()>,
    ) -> Result<Found> {
        let mut candidates = Vec::new();
        let mut total = Millis::ZERO;
        for (index, batch) in batches.iter().enumerate() {
            report(Progress::Searched { batches: index, of: batches.len() })?;
            let plan = planner.plan_cancellable(batch, cancellation).map_err(|error| error.in_batch(index))?;
            total += plan.step_ms();
            candidates.push(plan.strategy);
        }
        report(Progress::Searched { batches: batches.len(), of: batches.len() })?;
        if candidates.iter().all(|one| planner.admitted_by(one) < longest) {
            candidates.push(planner.plan_cancellable(&with_sequence(&batches[0], longest)?, cancellation)?.strategy);
        }
        candidates.sort();
        candidates.dedup();
        Ok(Found { candidates, search_ms: total * (1.0 / count(batches.len())) })
    }
}

/// The batch with one more sequence, for which a search finds a strategy where no batch has the longest sequence.
fn with_sequence(batch: &Batch, longest: Tokens) -> Result<Batch> {
    let lengths: Vec<i64> = batch.tokens().iter().chain([&longest]).copied().map(length).collect();
    Batch::new(&lengths, None)
}

fn length(tokens: Tokens) -> i64 {
    i64::try_from(tokens.0).unwrap_or(i64::MAX)
}

/// The chosen strategies, each with its contribution; the first `given` batches are those of the caller.
fn proposed(times: &mut Times, chosen: &[usize], given: usize) -> Result<Vec<Proposed>> {
    let whole = fastest(times, chosen)?;
    let batches = times.batches();
    let strategies = chosen.iter().enumerate().map(|(place, &one)| {
        let with_those_before = fastest(times, &chosen[..=place])?;
        let total: Millis = with_those_before.into_iter().map(|(ms, _)| ms).sum();
        let own: Vec<usize> = (0..batches).filter(|&batch| whole[batch].1 == one).collect();
        Ok(Proposed {
            strategy: times.strategies()[one].clone(),
            share: count(own.len()) / count(batches),
            batches: own.into_iter().filter(|&batch| batch < given).collect(),
            expected_ms: total * (1.0 / count(batches)),
        })
    });
    strategies.collect()
}
