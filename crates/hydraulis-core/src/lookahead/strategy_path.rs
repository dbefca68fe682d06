//! The choice of a strategy for each batch of a lookahead, where changes of strategy take time.
//!
//! The candidates are all strategies evaluated for any of the batches. Lower bounds of their times are cheap. The
//! planner finds the cheapest path over the bounds, plans the entries on that path, and repeats both until every
//! entry on the path has a plan. No other path is then cheaper, because its entries cost at least their bounds.

use std::collections::BTreeMap;

use crate::batch::Batch;
use crate::cancellation::Cancellation;
use crate::error::Result;
use crate::lookahead::cheapest_path::cheapest;
use crate::lookahead::group::Group;
use crate::lookahead::{Lookahead, LookaheadPlan, Step};
use crate::plan::{Outcome, Plan, Scope};
use crate::search::{Planner, Times};
use crate::spec::Strategy;
use crate::units::Millis;

/// The cost of each batch under each candidate, as a lower bound or a planned time.
struct StrategyPath<'a> {
    planner: &'a Planner,
    lookahead: &'a Lookahead<'a>,
    cancellation: Cancellation<'a>,
    groups: Vec<Group>,
    candidates: Vec<Strategy>,
    /// By batch and candidate: the exact cost where there is a plan, and a lower bound elsewhere.
    costs: Vec<Vec<Millis>>,
    plans: BTreeMap<(usize, usize), Plan>,
    /// The candidate that each batch takes when it is planned alone.
    own: Vec<usize>,
}

/// The plans of these batches along the cheapest path of strategies.
pub(super) fn steps(
    planner: &Planner,
    lookahead: &Lookahead,
    groups: Vec<Group>,
    cancellation: Cancellation,
) -> Result<LookaheadPlan> {
    let is_alone = groups.len() == 1 && lookahead.previous.is_none();
    if is_alone || lookahead.switch == Millis::ZERO {
        // No change of strategy takes time: the planner's own choices stand, which its searches have refined.
        let own =
            groups.into_iter().map(|group| Step { plan: group.plan, members: group.members, switch_ms: Millis::ZERO });
        return Ok(LookaheadPlan { steps: own.collect() });
    }
    let mut path = StrategyPath::new(planner, lookahead, groups, cancellation)?;
    let before = lookahead.previous.and_then(|previous| path.candidates.iter().position(|one| one == previous));
    // Where no batch can take the previous strategy, the first step changes strategy in any case.
    let entry = if before.is_none() && lookahead.previous.is_some() { lookahead.switch } else { Millis::ZERO };
    loop {
        let cheapest = cheapest(&path.costs, lookahead.switch, before, &path.own);
        if !path.plan_along(&cheapest)? {
            return Ok(path.along(&cheapest, before, entry));
        }
    }
}

impl<'a> StrategyPath<'a> {
    fn new(
        planner: &'a Planner,
        lookahead: &'a Lookahead<'a>,
        groups: Vec<Group>,
        cancellation: Cancellation<'a>,
    ) -> Result<StrategyPath<'a>> {
        let candidates = candidates(planner, lookahead.previous, &groups);
        let place = |group: &Group| candidates.binary_search(&group.plan.strategy).unwrap_or_default();
        let own = groups.iter().map(place).collect();
        let mut path = StrategyPath {
            planner,
            lookahead,
            cancellation,
            groups,
            own,
            candidates,
            costs: Vec::new(),
            plans: BTreeMap::new(),
        };
        path.costs = path.at_least()?;
        Ok(path)
    }

    /// Lower bounds of all costs; the cost of each batch under its own candidate is exact.
    fn at_least(&self) -> Result<Vec<Vec<Millis>>> {
        let batches: Vec<Batch> = self.groups.iter().map(|group| group.plan.batch.clone()).collect();
        let mut times = Times::new(self.planner, &batches, self.candidates.clone(), self.cancellation);
        let mut cost = |group: usize, candidate: usize| {
            let own = candidate == self.own[group];
            if own { tied(&self.groups[group].plan) } else { times.at_least(candidate, group) }
        };
        let number = self.candidates.len();
        let row = |group| {
            (self.cancellation)()?;
            Ok((0..number).map(|candidate| cost(group, candidate)).collect())
        };
        (0..batches.len()).map(row).collect()
    }

    /// Plans the entries along a path that have no plan; returns false where every entry has one.
    fn plan_along(&mut self, cheapest: &[usize]) -> Result<bool> {
        let mut is_new = false;
        for (group, &candidate) in cheapest.iter().enumerate() {
            if candidate != self.own[group] && !self.plans.contains_key(&(group, candidate)) {
                let plan = self.planner.with_strategy(
                    &self.groups[group].plan,
                    &self.candidates[candidate],
                    self.cancellation,
                )?;
                self.costs[group][candidate] = plan.step_ms();
                self.plans.insert((group, candidate), plan);
                is_new = true;
            }
        }
        Ok(is_new)
    }

    fn along(mut self, cheapest: &[usize], before: Option<usize>, entry: Millis) -> LookaheadPlan {
        let mut earlier = before;
        let mut steps = Vec::new();
        for (index, (group, &candidate)) in self.groups.into_iter().zip(cheapest).enumerate() {
            let is_change = earlier.is_some_and(|earlier| earlier != candidate);
            steps.push(Step {
                plan: self.plans.remove(&(index, candidate)).unwrap_or(group.plan),
                members: group.members,
                switch_ms: if is_change { self.lookahead.switch } else { Millis::ZERO },
            });
            earlier = Some(candidate);
        }
        steps[0].switch_ms += entry;
        LookaheadPlan { steps }
    }
}

/// The time of a batch's own plan. That plan is within a tie of the best plan found for the batch, so it counts as
/// the best time.
fn tied(plan: &Plan) -> Millis {
    let planned = plan.candidates.iter().filter_map(|one| match one.outcome {
        Outcome::Planned(ms) => Some(ms),
        _ => None,
    });
    planned.min().unwrap_or(plan.step_ms())
}

/// The candidates without duplicates: every strategy of the list or, without a list, all that the searches planned,
/// and the strategy before the lookahead.
fn candidates(planner: &Planner, previous: Option<&Strategy>, groups: &[Group]) -> Vec<Strategy> {
    let mut candidates: Vec<Strategy> = Vec::new();
    for Group { plan, .. } in groups {
        let known = plan.candidates.iter().filter(|one| match plan.scope {
            Scope::List => true,
            Scope::Any => matches!(one.outcome, Outcome::Planned(_)),
        });
        candidates.extend(known.map(|one| one.strategy.clone()));
    }
    // The bounds of a list hold for that list alone; the bounds of a search hold for every strategy that the profile
    // and cluster admit.
    let is_search = groups.iter().all(|group| group.plan.scope == Scope::Any);
    let is_usable = |one: &&Strategy| is_search && planner.with_strategies(vec![(*one).clone()]).is_ok();
    candidates.extend(previous.filter(is_usable).cloned());
    candidates.sort();
    candidates.dedup();
    candidates
}
