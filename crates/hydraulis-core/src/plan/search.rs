//! Finds a strategy for this very batch, without a list.
//!
//! The bound for any strategy comes from a program that divides replicas ([`crate::plan::bound`]); the whole numbers
//! near its answer are a strategy to try. Dividing the market raises the bound and gives other answers, until the
//! best plan is proven to be near the best there is, or the budget is used up. What is tried is counted, not timed.

use std::collections::BTreeSet;

use crate::capacity::SchemeCapacity;
use crate::error::Result;
use crate::plan::attempt::{Attempt, Task};
use crate::plan::bound::{Bound, Bounder, Branches, Limit};
use crate::plan::{Considered, Effort, Outcome};
use crate::spec::{Cluster, Scheme, Strategy};
use crate::strategy::{neighbours, place};
use crate::units::Millis;

/// A plan within this share of the bound is not improved.
const NEAR: f64 = 1e-3;

/// Neighbours planned at each step of the walk.
const NEIGHBOURS: usize = 4;

/// What came of a search.
pub(super) struct Found {
    pub(super) attempts: Vec<Attempt>,
    pub(super) considered: Vec<Considered>,
    /// Over any strategy; none if no scheme admits the batch.
    pub(super) bound: Option<Bound>,
}

/// The strategies tried for one batch.
pub(super) struct Search<'a> {
    task: &'a Task<'a>,
    bounder: &'a Bounder<'a>,
    schemes: &'a [&'a SchemeCapacity],
    effort: Effort,
    seen: BTreeSet<Strategy>,
    attempts: Vec<Attempt>,
    considered: Vec<Considered>,
}

impl<'a> Search<'a> {
    /// Tries strategies made of `schemes`, and the simple `mixes` of them where it finds none.
    pub(super) fn run(
        task: &'a Task<'a>,
        bounder: &'a Bounder<'a>,
        (schemes, mixes): (&'a [&'a SchemeCapacity], &[Strategy]),
        effort: Effort,
    ) -> Result<Found> {
        let (attempts, considered) = (Vec::new(), Vec::new());
        let mut search = Search { task, bounder, schemes, effort, seen: BTreeSet::new(), attempts, considered };
        let bound = match (bounder.longest_way(schemes), bounder.of_any(schemes, search.cluster().gpus())) {
            (Some(longest_way), Some(branches)) => Some(longest_way.or_work(search.try_all(branches, mixes)?)),
            _ => None,
        };
        Ok(Found { attempts: search.attempts, considered: search.considered, bound })
    }

    /// Tries what is near the answer for each market, then what is near the best; the bound over all markets.
    fn try_all(&mut self, mut branches: Branches, mixes: &[Strategy]) -> Result<Millis> {
        let mut looked_at = 0;
        loop {
            while looked_at < branches.len() {
                self.consider_counts(&branches.node(looked_at).rounded(self.cluster().gpus()))?;
                looked_at += 1;
            }
            let is_near = branches.least() >= self.least() * (1.0 - NEAR);
            if is_near || branches.len() >= self.effort.markets || !branches.divide(self.least()) {
                break;
            }
        }
        if branches.least() < self.least() * (1.0 - NEAR) && !self.is_spent() {
            self.walk()?;
        }
        // The longest sequence may need a scheme that no answer had a whole one of.
        if self.attempts.is_empty() {
            mixes.iter().try_for_each(|strategy| self.consider(strategy.clone()))?;
        }
        Ok(branches.least().min(self.least()))
    }

    /// Walks to neighbours of the best strategy, in the order of their bounds.
    fn walk(&mut self) -> Result<()> {
        let pool: Vec<Scheme> = self.schemes.iter().map(|capacity| capacity.cost().scheme()).collect();
        while let Some(best) = self.attempts.iter().min_by_key(|attempt| attempt.iteration_ms) {
            let before = best.iteration_ms;
            let around = neighbours(&best.strategy, &pool, self.cluster());
            let fresh = around.into_iter().filter(|other| !self.seen.contains(other));
            let bounded = fresh.filter_map(|other| Some((self.bound(&other)?, other)));
            let mut promising: Vec<(Millis, Strategy)> =
                bounded.filter(|(ms, _)| *ms < before * (1.0 - NEAR)).collect();
            promising.sort();
            promising.into_iter().take(NEIGHBOURS).try_for_each(|(_, strategy)| self.consider(strategy))?;
            if self.least() >= before {
                break;
            }
        }
        Ok(())
    }

    fn consider_counts(&mut self, counts: &[usize]) -> Result<()> {
        let schemes = self.schemes.iter().zip(counts);
        let replicas = schemes.flat_map(|(capacity, &count)| std::iter::repeat_n(capacity.cost().scheme(), count));
        match Strategy::new(replicas.collect()) {
            Ok(strategy) if place(&strategy, self.cluster()).is_ok() => self.consider(strategy),
            _ => Ok(()),
        }
    }

    /// Plans a strategy that was not seen before, unless it cannot be better than the best.
    fn consider(&mut self, strategy: Strategy) -> Result<()> {
        if self.is_spent() || !self.seen.insert(strategy.clone()) {
            return Ok(());
        }
        let Some(bound) = self.bound(&strategy) else { return Ok(()) };
        let outcome = if bound >= self.least() * (1.0 - NEAR) {
            Outcome::Pruned(bound)
        } else {
            let attempt = self.task.attempt(&strategy)?;
            let outcome = Outcome::Planned(attempt.iteration_ms);
            self.attempts.push(attempt);
            outcome
        };
        self.considered.push(Considered { strategy, outcome });
        Ok(())
    }

    /// Whether no more may be planned: one strategy always is, so that there is a plan.
    fn is_spent(&self) -> bool {
        !self.attempts.is_empty() && self.attempts.len() >= self.effort.attempts
    }

    /// What this strategy cannot beat; no more than the best plan's time is proven.
    fn bound(&self, strategy: &Strategy) -> Option<Millis> {
        let groups = strategy.groups();
        let known = |scheme| self.schemes.iter().find(|capacity| capacity.cost().scheme() == scheme);
        let groups = groups.iter().map(|(scheme, replicas)| Some((*known(*scheme)?, *replicas)));
        let limit = Limit { until: self.least(), markets: 1 };
        let groups = groups.collect::<Option<Vec<_>>>()?;
        self.bounder.of_strategy(&groups, self.cluster().gpus(), limit).map(|bound| bound.ms)
    }

    fn cluster(&self) -> Cluster {
        self.task.capacities.cost().cluster()
    }

    /// The best time so far.
    fn least(&self) -> Millis {
        self.attempts.iter().map(|attempt| attempt.iteration_ms).min().unwrap_or(Millis::INFINITY)
    }
}
