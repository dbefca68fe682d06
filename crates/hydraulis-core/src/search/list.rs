//! Plans the strategies of a list.
//!
//! Each strategy has a quick bound. Those that may be the shortest are planned; then the bounds below the best plan are
//! raised by branching, and by whole long sequences where the best plan is far from them.

use crate::bound::{ProofLimit, ProofRange};
use crate::error::Result;
use crate::plan::{Bound, Candidate, Outcome};
use crate::search::Planner;
use crate::search::evaluation::{Evaluation, Found};
use crate::search::objective::TIE;
use crate::search::task::Task;
use crate::spec::Strategy;
use crate::units::Millis;

impl Planner {
    /// Plans the strategies of the list in the order of their bounds, except those whose bound is above the best plan.
    pub(super) fn plan_list(&self, task: &Task, list: &[Strategy]) -> Result<Found> {
        let bounder = self.bounder(task.batch);
        let bound = |strategy: &Strategy, until, dual_solves| -> Result<Option<Bound>> {
            (task.cancellation)()?;
            Ok(self.bound(&bounder, strategy, ProofLimit { until, dual_solves }))
        };
        let bounds = list.iter().map(|strategy| bound(strategy, Millis::INFINITY, 1));
        let mut bounds = bounds.collect::<Result<Vec<_>>>()?;
        let evaluations = evaluate_promising(task, list, &bounds)?;
        let least = task.objective.least(&evaluations);
        let (bounded, is_uniform) = (task.least_bounded(&evaluations), self.cost().cluster().is_uniform());
        let is_far = |bound: &&mut Bound| is_uniform && bound.ms < bounded * (1.0 - self.budget().bound.long.far);
        for (strategy, known) in list.iter().zip(&mut bounds) {
            if known.is_some_and(|bound| bound.ms < least) {
                *known = bound(strategy, least, self.budget().dual_solves)?;
            }
            if let Some(known) = known.as_mut().filter(is_far) {
                let until = bounded * (1.0 - self.budget().local_search.near);
                let range = ProofRange { proven: known.ms, until };
                *known =
                    known.or_work(bounder.of_long_strategy(self.capacities(), strategy, range, task.cancellation)?);
            }
        }
        let candidates = list.iter().zip(&bounds).map(|(strategy, bound)| {
            let evaluation = evaluations.iter().find(|evaluation| evaluation.strategy == *strategy);
            let outcome = match (evaluation, bound) {
                (Some(evaluation), _) => Outcome::Planned(task.objective.ms(evaluation)),
                (None, Some(bound)) if task.admits(strategy) => Outcome::Pruned(bound.ms),
                (None, _) => Outcome::TooNarrow(self.admitted_by(strategy)),
            };
            Candidate { strategy: strategy.clone(), outcome }
        });
        let candidates = candidates.collect();
        let bound = bounds.into_iter().flatten().min_by_key(|bound| bound.ms);
        Ok(Found { evaluations, candidates, bound })
    }
}

/// Plans the strategies in the order of their bounds, except those whose bound is above the best plan.
fn evaluate_promising(task: &Task, list: &[Strategy], bounds: &[Option<Bound>]) -> Result<Vec<Evaluation>> {
    let known = |(index, bound): (usize, &Option<Bound>)| Some((bound.as_ref()?.ms, index));
    let mut promising: Vec<(Millis, usize)> = bounds.iter().enumerate().filter_map(known).collect();
    promising.sort_unstable();
    let mut least = Millis::INFINITY;
    let mut evaluations: Vec<Evaluation> = Vec::new();
    for &(bound, index) in &promising {
        if bound <= least * (1.0 + TIE) && task.admits(&list[index]) {
            let evaluation = task.evaluate(&list[index])?;
            least = least.min(task.objective.ms(&evaluation));
            evaluations.push(evaluation);
        }
    }
    Ok(evaluations)
}
