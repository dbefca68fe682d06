//! The planners and baselines by name.

use clap::ValueEnum;
use hydraulis_core::Tokens;
use hydraulis_core::batch::Batch;
use hydraulis_core::cost::CostModel;
use hydraulis_core::plan::Plan;
use hydraulis_core::search::{Planner, RunLimit};
use hydraulis_core::spec::Strategy;
use hydraulis_core::timing::Link;

use crate::baseline::{Assign, Buckets, Decision, Fixed, FlexibleGroups, Paper, assigners};
use crate::error::{Error, Result};

/// The name of a planner or baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Name {
    /// The core's planner over the given strategies.
    Hydraulis,
    /// The core's planner with a search over all strategies.
    Search,
    /// The Hydraulis paper's two stages over the given strategies.
    Paper,
    /// One strategy for the run; packs of balanced time, a multiple of its replicas.
    StaticBalanced,
    /// One strategy for the run; first-fit-decreasing packs, assigned in turn.
    StaticFirstFit,
    /// One strategy for the run; the same packs, sorted by time before the assignment.
    StaticSorted,
    /// One strategy for each bucket of lengths, run one after another.
    Buckets,
    /// Groups of several sizes in each of some steps, run one after another.
    FlexibleGroups,
    /// One strategy for the run; sequences assigned longest first.
    LongestFirst,
    /// One strategy for the run; sequences assigned by largest differencing.
    KarmarkarKarp,
}

impl Name {
    /// The name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Name::Hydraulis => "hydraulis",
            Name::Search => "search",
            Name::Paper => "paper",
            Name::StaticBalanced => "static-balanced",
            Name::StaticFirstFit => "static-first-fit",
            Name::StaticSorted => "static-sorted",
            Name::Buckets => "buckets",
            Name::FlexibleGroups => "flexible-groups",
            Name::LongestFirst => "longest-first",
            Name::KarmarkarKarp => "karmarkar-karp",
        }
    }

    /// The assignment function of a baseline with one strategy for the whole run; none for other planners.
    fn assign(self) -> Option<Assign> {
        match self {
            Name::StaticBalanced => Some(assigners::static_balanced),
            Name::StaticFirstFit => Some(assigners::static_first_fit),
            Name::StaticSorted => Some(assigners::static_sorted),
            Name::LongestFirst => Some(assigners::longest_first),
            Name::KarmarkarKarp => Some(assigners::karmarkar_karp),
            Name::Hydraulis | Name::Search | Name::Paper | Name::Buckets | Name::FlexibleGroups => None,
        }
    }
}

/// A planner or baseline, ready for the batches of one run.
#[derive(Clone, Debug)]
pub struct PlannerUnderTest<'a> {
    /// Its name.
    pub name: String,
    method: Method<'a>,
}

#[derive(Clone, Debug)]
enum Method<'a> {
    Core(Box<Planner>),
    Limited(Box<Limited>),
    Paper(Paper<'a>),
    Fixed(Box<Fixed<'a>>),
    Buckets(Buckets<'a>),
    Groups(FlexibleGroups<'a>),
}

/// The core's planner with a limit on the strategies of a run.
#[derive(Clone, Debug)]
struct Limited {
    planner: Planner,
    most: usize,
    used: Vec<Strategy>,
}

/// A planner's answer for a batch.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The core's plan.
    Plan(Box<Plan>),
    /// A baseline's decision.
    Decision(Decision),
}

impl<'a> PlannerUnderTest<'a> {
    /// Creates the planner under test with this name.
    ///
    /// It chooses from `strategies`, or from the profile's own if none are given. A baseline that keeps one strategy
    /// chooses it here, in hindsight over all batches. A run with a sequence that the planner does not admit is
    /// refused. With a `link` the core's planners count transfers.
    pub fn new(
        name: Name,
        cost: &'a CostModel,
        strategies: Option<&[Strategy]>,
        batches: &[Batch],
        link: Option<&Link>,
    ) -> Result<PlannerUnderTest<'a>> {
        let (_, _, longest) = longest(batches).ok_or(Error::WorkloadEmpty)?;
        let over_list = || -> hydraulis_core::Result<Planner> {
            let planner =
                Planner::new(cost.profile().clone(), cost.cluster().clone(), strategies.map(<[Strategy]>::to_vec))?;
            Ok(planner.with_memory(cost.memory()))
        };
        let search = || Planner::search(cost.profile().clone(), cost.cluster().clone());
        let linked = |planner: Planner| match link {
            Some(link) => planner.with_link(link.clone()),
            None => Ok(planner),
        };
        let method = match (name, name.assign()) {
            (_, Some(assign)) => Method::Fixed(Box::new(Fixed::best(name.as_str(), assign, cost, batches, longest)?)),
            (Name::Search, _) => Method::Core(Box::new(linked(search()?.with_memory(cost.memory()))?)),
            (Name::Buckets, _) => Method::Buckets(Buckets::best(name.as_str(), cost, batches, longest)?),
            (Name::FlexibleGroups, _) => {
                let groups = FlexibleGroups::new(cost);
                admitted(name, groups.longest_admitted(), batches)?;
                Method::Groups(groups)
            }
            (Name::Paper, _) => {
                let list = over_list()?;
                admitted(name, list.longest_admitted(), batches)?;
                Method::Paper(Paper::new(cost, list.strategies())?)
            }
            _ => Method::Core(Box::new(linked(over_list()?)?)),
        };
        if let Method::Core(planner) = &method {
            admitted(name, planner.longest_admitted(), batches)?;
        }
        Ok(PlannerUnderTest { name: name.as_str().into(), method })
    }

    /// Wraps the core's planner `planner` under another name.
    pub fn from_planner(name: &str, planner: Planner) -> PlannerUnderTest<'a> {
        PlannerUnderTest { name: name.into(), method: Method::Core(Box::new(planner)) }
    }

    /// Wraps the core's planner `planner` with a limit of `most` distinct strategies in the run.
    pub fn with_limit(name: &str, planner: Planner, most: usize) -> PlannerUnderTest<'a> {
        let limited = Limited { planner, most, used: Vec::new() };
        PlannerUnderTest { name: name.into(), method: Method::Limited(Box::new(limited)) }
    }

    /// Plans the next batch of the run.
    pub fn decide(&mut self, batch: &Batch) -> Result<Answer> {
        Ok(match &mut self.method {
            Method::Limited(limited) => Answer::Plan(Box::new(limited.plan(batch)?)),
            Method::Core(planner) => Answer::Plan(Box::new(planner.plan(batch)?)),
            Method::Fixed(fixed) => Answer::Decision(fixed.decide(batch)),
            Method::Buckets(buckets) => Answer::Decision(buckets.decide(batch)?),
            Method::Groups(groups) => Answer::Decision(groups.decide(batch)),
            Method::Paper(paper) => Answer::Decision(paper.decide(batch)?),
        })
    }
}

impl Limited {
    fn plan(&mut self, batch: &Batch) -> Result<Plan> {
        let plan = self.planner.plan_limited(batch, RunLimit { most: self.most, used: &self.used })?;
        if !self.used.contains(&plan.strategy) {
            self.used.push(plan.strategy.clone());
        }
        Ok(plan)
    }
}

/// The longest sequence of a run: its batch, its index there, its tokens.
fn longest(batches: &[Batch]) -> Option<(usize, usize, Tokens)> {
    let each = batches.iter().enumerate().map(|(batch, lengths)| {
        let (sequence, tokens) = lengths.longest();
        (batch, sequence, tokens)
    });
    each.max_by_key(|&(batch, _, tokens)| (tokens, std::cmp::Reverse(batch)))
}

fn admitted(name: Name, limit: Tokens, batches: &[Batch]) -> Result<()> {
    match longest(batches) {
        Some((batch, sequence, tokens)) if tokens > limit => {
            Err(Error::NotAdmitted { batch, sequence, tokens, name: name.as_str(), limit })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command_line() {
        assert_eq!(Name::value_variants().len(), 10);
        for name in Name::value_variants() {
            assert_eq!(name.to_possible_value().unwrap().get_name(), name.as_str());
        }
    }
}
