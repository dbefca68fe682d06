//! Which strategy each batch of a window takes, where changes cost something.
//!
//! The candidates are all strategies that were considered for any of the batches. Lower bounds of their times are cheap:
//! the cheapest route over the bounds is found, the entries on it are planned, and this is done again until every entry
//! on the route is a planned one. No other route is cheaper then, because its entries cost at least their bounds.

use std::collections::BTreeMap;

use crate::batch::Batch;
use crate::error::Result;
use crate::lookahead::group::Group;
use crate::lookahead::route::cheapest;
use crate::lookahead::{Step, Window, WindowPlan};
use crate::plan::{Outcome, Plan, Scope};
use crate::search::{Planner, Times};
use crate::spec::Strategy;
use crate::units::Millis;
use crate::watch::Watch;

/// What each batch costs under each candidate, as far as it is known.
struct Course<'a> {
    planner: &'a Planner,
    window: &'a Window<'a>,
    watch: Watch<'a>,
    groups: Vec<Group>,
    candidates: Vec<Strategy>,
    /// By batch and candidate: at least this much, and just this much where there is a plan.
    costs: Vec<Vec<Millis>>,
    plans: BTreeMap<(usize, usize), Plan>,
    /// The candidate that each batch would take for itself.
    own: Vec<usize>,
}

/// The plans of these batches under the cheapest sequence of strategies.
pub(super) fn steps(planner: &Planner, window: &Window, groups: Vec<Group>, watch: Watch) -> Result<WindowPlan> {
    let mut course = Course::new(planner, window, groups, watch);
    let before = window.previous.and_then(|previous| course.candidates.iter().position(|one| one == previous));
    // A strategy that no batch can take is a change at the beginning, whatever comes.
    let entry = if before.is_none() && window.previous.is_some() { window.switch } else { Millis::ZERO };
    // Nothing changes before or after: the planner's own choice stands, which alone a search has polished.
    let is_alone = course.own.len() == 1 && window.previous.is_none();
    loop {
        let route =
            if is_alone { course.own.clone() } else { cheapest(&course.costs, window.switch, before, &course.own) };
        if !course.plan_along(&route)? {
            return Ok(course.along(&route, before, entry));
        }
    }
}

impl<'a> Course<'a> {
    fn new(planner: &'a Planner, window: &'a Window<'a>, groups: Vec<Group>, watch: Watch<'a>) -> Course<'a> {
        let candidates = candidates(planner, window.previous, &groups);
        let place = |group: &Group| candidates.binary_search(&group.plan.strategy).unwrap_or_default();
        let own = groups.iter().map(place).collect();
        let mut course =
            Course { planner, window, watch, groups, own, candidates, costs: Vec::new(), plans: BTreeMap::new() };
        course.costs = course.at_least();
        course
    }

    /// Bounds of all costs; what each batch takes for itself is known.
    fn at_least(&self) -> Vec<Vec<Millis>> {
        let batches: Vec<Batch> = self.groups.iter().map(|group| group.plan.batch.clone()).collect();
        let mut times = Times::new(self.planner, &batches, self.candidates.clone(), self.watch);
        let mut cost = |group: usize, candidate: usize| {
            let own = candidate == self.own[group];
            if own { tied(&self.groups[group].plan) } else { times.at_least(candidate, group) }
        };
        let number = self.candidates.len();
        (0..batches.len()).map(|group| (0..number).map(|candidate| cost(group, candidate)).collect()).collect()
    }

    /// Plans what was not planned yet along a route; false where everything was.
    fn plan_along(&mut self, route: &[usize]) -> Result<bool> {
        let mut is_new = false;
        for (group, &candidate) in route.iter().enumerate() {
            if candidate != self.own[group] && !self.plans.contains_key(&(group, candidate)) {
                let plan = self.planner.under(&self.groups[group].plan, &self.candidates[candidate], self.watch)?;
                self.costs[group][candidate] = plan.step_ms();
                self.plans.insert((group, candidate), plan);
                is_new = true;
            }
        }
        Ok(is_new)
    }

    fn along(mut self, route: &[usize], before: Option<usize>, entry: Millis) -> WindowPlan {
        let mut earlier = before;
        let mut steps = Vec::new();
        for (index, (group, &candidate)) in self.groups.into_iter().zip(route).enumerate() {
            let is_change = earlier.is_some_and(|earlier| earlier != candidate);
            steps.push(Step {
                plan: self.plans.remove(&(index, candidate)).unwrap_or(group.plan),
                members: group.members,
                switch_ms: if is_change { self.window.switch } else { Millis::ZERO },
            });
            earlier = Some(candidate);
        }
        steps[0].switch_ms += entry;
        WindowPlan { steps }
    }
}

/// The time of a batch's own plan, which is within a tie of the best found for it and so counts as that.
fn tied(plan: &Plan) -> Millis {
    let planned = plan.considered.iter().filter_map(|one| match one.outcome {
        Outcome::Planned(ms) => Some(ms),
        _ => None,
    });
    planned.min().unwrap_or(plan.step_ms())
}

/// Every strategy of the list, or all that the searches planned, and the one before the window; each once.
fn candidates(planner: &Planner, previous: Option<&Strategy>, groups: &[Group]) -> Vec<Strategy> {
    let mut candidates: Vec<Strategy> = Vec::new();
    for Group { plan, .. } in groups {
        let considered = plan.considered.iter().filter(|one| match plan.scope {
            Scope::List => true,
            Scope::Any => matches!(one.outcome, Outcome::Planned(_)),
        });
        candidates.extend(considered.map(|one| one.strategy.clone()));
    }
    // The bounds of a list hold for that list alone; those of a search hold for whatever the profile and cluster admit.
    let is_search = groups.iter().all(|group| group.plan.scope == Scope::Any);
    let is_usable = |one: &&Strategy| is_search && planner.over(vec![(*one).clone()]).is_ok();
    candidates.extend(previous.filter(is_usable).cloned());
    candidates.sort();
    candidates.dedup();
    candidates
}
