//! The times of many strategies on many batches, each computed on first use: step times with a link, iteration times
//! without one.
//!
//! A lower bound costs a small part of a time; if the bound already rules a strategy out, the time is never computed.
//! Computed entries are cached, so a repeated query costs nothing.

use crate::batch::Batch;
use crate::bound::{Bounder, ProofLimit};
use crate::cancellation::Cancellation;
use crate::error::Result;
use crate::plan::Extrapolation;
use crate::search::Planner;
use crate::search::task::Task;
use crate::spec::Strategy;
use crate::units::Millis;

/// A table of times, strategies by batches.
pub(crate) struct Times<'a> {
    planner: &'a Planner,
    tasks: Vec<Task<'a>>,
    bounders: Vec<Bounder<'a>>,
    strategies: Vec<Strategy>,
    known: Vec<Known>,
}

/// The known value of one entry.
#[derive(Clone, Copy)]
enum Known {
    Nothing,
    AtLeast(Millis),
    Exactly(Millis, Option<Extrapolation>),
}

impl<'a> Times<'a> {
    /// An empty table of these strategies on these batches; an error from `cancellation` ends the computation of a
    /// time.
    pub(crate) fn new(
        planner: &'a Planner,
        batches: &'a [Batch],
        strategies: Vec<Strategy>,
        cancellation: Cancellation<'a>,
    ) -> Times<'a> {
        let tasks: Vec<Task> = batches.iter().map(|batch| planner.task(batch, cancellation)).collect();
        let bounders = batches.iter().map(|batch| planner.bounder(batch)).collect();
        let known = vec![Known::Nothing; tasks.len() * strategies.len()];
        Times { planner, tasks, bounders, strategies, known }
    }

    /// The strategies, by which the table is indexed.
    pub(crate) fn strategies(&self) -> &[Strategy] {
        &self.strategies
    }

    /// Number of batches.
    pub(crate) fn batches(&self) -> usize {
        self.tasks.len()
    }

    /// A lower bound of the time, or the time itself if it is known; infinite if a sequence is not admitted.
    pub(crate) fn at_least(&mut self, strategy: usize, batch: usize) -> Millis {
        let place = self.place(strategy, batch);
        if let Known::AtLeast(ms) | Known::Exactly(ms, _) = self.known[place] {
            return ms;
        }
        let limit = ProofLimit { until: Millis::INFINITY, dual_solves: 1 };
        let bound = self.planner.bound(&self.bounders[batch], &self.strategies[strategy], limit);
        let ms = bound.map_or(Millis::INFINITY, |bound| bound.ms);
        self.known[place] = Known::AtLeast(ms);
        ms
    }

    /// The time, if it is below `limit`; if the lower bound is not below it, nothing is planned.
    pub(crate) fn below(&mut self, strategy: usize, batch: usize, limit: Millis) -> Result<Option<Millis>> {
        let place = self.place(strategy, batch);
        if self.at_least(strategy, batch) >= limit {
            return Ok(None);
        }
        let ms = match self.known[place] {
            Known::Exactly(ms, _) => ms,
            Known::Nothing | Known::AtLeast(_) => {
                let task = &self.tasks[batch];
                let evaluation = task.evaluate(&self.strategies[strategy])?;
                let extrapolation = Extrapolation::of_replicas(&self.planner.replicas(task.batch, &evaluation)?);
                let ms = task.objective.ms(&evaluation);
                self.known[place] = Known::Exactly(ms, extrapolation);
                ms
            }
        };
        Ok(Some(ms).filter(|&ms| ms < limit))
    }

    /// The extrapolation of a plan whose time is known; none if the plan stays within the measurements or is not known.
    pub(crate) fn extrapolation(&self, strategy: usize, batch: usize) -> Option<Extrapolation> {
        match self.known[self.place(strategy, batch)] {
            Known::Exactly(_, extrapolation) => extrapolation,
            Known::Nothing | Known::AtLeast(_) => None,
        }
    }

    /// Number of times computed so far.
    pub(crate) fn computed(&self) -> usize {
        self.known.iter().filter(|known| matches!(known, Known::Exactly(..))).count()
    }

    fn place(&self, strategy: usize, batch: usize) -> usize {
        strategy * self.tasks.len() + batch
    }
}
