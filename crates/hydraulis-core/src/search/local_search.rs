//! Finds a strategy for one batch, without a list.
//!
//! 1. Start with two strategies: the replicas of the sizing, and the rounded replica counts of the bound's linear program.
//!    Where bounds and estimates leave out transfers, plan all strategies of equal replicas too: those that move least may
//!    have late iterations.
//! 2. If neither is near the bound, survey the mixes of a few schemes, and plan the shortest.
//! 3. Move from the best plan to neighbours whose estimate is shorter.
//! 4. Branch the bound, until the best plan is near it or the budget is used up.
//! 5. If the plan is still far from it, restart from the rounded counts of the branches and from listed strategies, and
//!    plan strategies of equal replicas by their estimates.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::bound::{AnyClass, Bounder, Branches, Node, Price, ProofLimit};
use crate::capacity::ClassCapacity;
use crate::construct::neighbours;
use crate::cost::ClassCost;
use crate::error::Result;
use crate::layout::place;
use crate::plan::{Candidate, Outcome};
use crate::search::evaluation::{Evaluation, Found};
use crate::search::sizing::Sizing;
use crate::search::task::Task;
use crate::search::values::Values;
use crate::spec::{Cluster, LocalSearchBudget, Scheme, Strategy};
use crate::units::{Millis, Tokens, count};

/// Strategies that are known without a search.
#[derive(Clone, Copy)]
pub(super) struct SimpleStrategies<'a> {
    /// Mixes of few schemes, of which some are planned if the search's initial strategies admit no plan.
    pub(super) mixes: &'a [Strategy],
    /// Strategies of the list without a search, evaluated if the search stays far from its bound.
    pub(super) listed: &'a [Strategy],
}

/// The search for one batch.
pub(super) struct Search<'a> {
    pub(super) task: &'a Task<'a>,
    pub(super) bounder: &'a Bounder<'a>,
    /// The classes that replicas may have; several of a scheme on ranks of different speed. Classes that no shorter plan
    /// has are left out.
    pub(super) classes: Vec<AnyClass<'a>>,
    /// The classes of which the search makes strategies: of many schemes, those of the greatest value.
    pub(super) leading: Vec<usize>,
    pub(super) budget: LocalSearchBudget,
    seen: BTreeSet<Strategy>,
    pub(super) evaluations: Vec<Evaluation>,
    candidates: Vec<Candidate>,
}

impl<'a> Search<'a> {
    /// Searches strategies made of replicas of these classes, and evaluates the simple ones if these fall short.
    pub(super) fn run(
        task: &'a Task<'a>,
        bounder: &'a Bounder<'a>,
        classes: &'a [AnyClass<'a>],
        simple: SimpleStrategies<'_>,
    ) -> Result<Found> {
        let mut search = Search {
            task,
            bounder,
            classes: classes.to_vec(),
            leading: Vec::new(),
            budget: task.budget.local_search,
            seen: BTreeSet::new(),
            evaluations: Vec::new(),
            candidates: Vec::new(),
        };
        let longest_path = bounder.longest_path(classes.iter().map(|class| class.capacity));
        let bound = match (longest_path, search.branches(Millis::ZERO)) {
            (Some(longest_path), Some(branches)) => {
                let branches = search.improve(branches, simple)?;
                search.merge_best(branches.as_ref().map_or(Millis::INFINITY, Branches::least))?;
                let proven = branches.map_or(Ok(Millis::INFINITY), |branches| search.prove_long(&branches))?;
                Some(longest_path.or_work(proven.min(search.least_bounded())))
            }
            _ => None,
        };
        Ok(Found { evaluations: search.evaluations, candidates: search.candidates, bound })
    }

    /// Plans strategies until the best one is near its bound or the budget ends; returns the branches of the bound. None
    /// if no plan can be shorter than the best one found.
    fn improve(&mut self, branches: Branches<'a>, simple: SimpleStrategies) -> Result<Option<Branches<'a>>> {
        self.leading = self.leading(&branches);
        self.start(&branches, simple.mixes)?;
        if self.task.objective.leaves_out_transfers() {
            self.try_equal_replicas(&branches, self.classes.len())?;
        }
        let Some(branches) = self.without_impossible(branches) else { return Ok(None) };
        let Some(branches) = self.survey_all(branches)? else { return Ok(None) };
        self.move_to_neighbours(&branches)?;
        let Some(mut branches) = self.without_impossible(branches) else { return Ok(None) };
        self.prove(&mut branches)?;
        if branches.least() < self.least_bounded() * (1.0 - self.budget.far) {
            self.restart(&branches)?;
        }
        if branches.least() < self.least() * (1.0 - self.budget.far) {
            self.restart_from_list(simple.listed, &branches)?;
        }
        if branches.least() < self.least() * (1.0 - self.budget.near) {
            self.try_equal_replicas(&branches, self.budget.restarts)?;
        }
        Ok(Some(branches))
    }

    /// The classes of the greatest value per rank by the time of the bound; on ranks of different speed all classes.
    pub(super) fn leading(&self, branches: &Branches) -> Vec<usize> {
        let most = [self.budget.classes, self.budget.wide_classes];
        let values = Values::by(branches.least(), branches, &self.classes).filter(|_| self.cluster().is_uniform());
        let leading = values.map(|values| values.leading(&self.classes, most, self.admits_longest()));
        leading.unwrap_or_else(|| (0..self.classes.len()).collect())
    }

    /// Whether a class admits the longest sequence.
    pub(super) fn admits_longest(&self) -> impl Fn(&AnyClass) -> bool + use<> {
        let (_, longest) = self.task.batch.longest();
        move |class: &AnyClass| class.capacity.cost().admits(longest)
    }

    /// The capacities of the leading classes.
    pub(super) fn capacities(&self) -> Vec<&'a ClassCapacity> {
        self.leading.iter().map(|&class| self.classes[class].capacity).collect()
    }

    /// Evaluates the initial strategies.
    fn start(&mut self, branches: &Branches, mixes: &[Strategy]) -> Result<()> {
        let (root, gpus) = (branches.root(), self.cluster().gpus());
        let short = self.admitted_by_half(root);
        let prices: Vec<Price> = self.leading.iter().map(|&class| root.prices()[class]).collect();
        let sized = Sizing::new(self.task, &self.capacities(), &prices, gpus, short).replicas(branches.least());
        if let Some(sized) = sized {
            let mut placed = vec![Vec::new(); self.classes.len()];
            self.leading.iter().zip(sized).for_each(|(&class, replicas)| placed[class] = replicas);
            self.evaluate_placed(placed, short)?;
        }
        self.evaluate_counts(&root.rounded(gpus))?;
        // The longest sequence may need a scheme that neither initial strategy has.
        if self.evaluations.is_empty() { self.start_from_mixes(branches, mixes) } else { Ok(()) }
    }

    /// Plans the mixes of the least estimates among the most valuable ones that admit every sequence.
    fn start_from_mixes(&mut self, branches: &Branches, mixes: &[Strategy]) -> Result<()> {
        let values = Values::by(branches.least(), branches, &self.classes);
        let value = |strategy: &Strategy| values.as_ref().map_or(0.0, |values| values.of_strategy(strategy));
        let admitting = mixes.iter().filter(|strategy| self.task.admits(strategy));
        let mut valued: Vec<(f64, &Strategy)> = admitting.map(|strategy| (value(strategy), strategy)).collect();
        valued.sort_by(|one, other| other.0.total_cmp(&one.0).then_with(|| one.1.cmp(other.1)));
        valued.truncate(self.estimated().max(1));
        let valued: Vec<Strategy> = valued.into_iter().map(|(_, strategy)| strategy.clone()).collect();
        let first = valued.first().cloned();
        self.evaluate_shortest(valued, self.budget.restarts)?;
        // A batch of many sequences has no estimates.
        first.filter(|_| self.evaluations.is_empty()).map_or(Ok(()), |strategy| self.evaluate(strategy))
    }

    /// The longest sequence that at least half of the ranks used by the program admit.
    fn admitted_by_half(&self, node: &Node) -> Tokens {
        let longest = |class: usize| self.classes[class].capacity.cost().longest();
        let ranks = |class: usize| node.used(class).0 * count(self.classes[class].capacity.cost().scheme().ranks());
        let mut widest: Vec<usize> = (0..self.classes.len()).collect();
        widest.sort_by_key(|&class| Reverse(longest(class)));
        let half = 0.5 * widest.iter().map(|&class| ranks(class)).sum::<f64>();
        let mut admitting = 0.0;
        let reaches_half = |class: &usize| {
            admitting += ranks(*class);
            admitting >= half
        };
        widest.into_iter().find(reaches_half).map(longest).unwrap_or_default()
    }

    /// Plans replicas with sequences longer than `short` placed on them. If the budget allows no further candidate,
    /// these sequences keep their replicas.
    fn evaluate_placed(&mut self, placed: Vec<Vec<Vec<usize>>>, short: Tokens) -> Result<()> {
        let counts: Vec<usize> = placed.iter().map(Vec::len).collect();
        let Some(strategy) = self.strategy_of(&counts) else { return Ok(()) };
        // Where ranks differ, a replica's placement may admit less than the class by which it was sized.
        if self.budget.planned_sequences / self.task.batch.len() > 1 || !self.cluster().is_uniform() {
            return self.evaluate(strategy);
        }
        let schemes = self.classes.iter().map(|class| class.capacity.cost().scheme());
        let mut by_scheme: Vec<(Scheme, Vec<Vec<usize>>)> = schemes.zip(placed).collect();
        // In the order of the strategy's replicas.
        by_scheme.sort_by_key(|(scheme, _)| strategy.schemes().iter().position(|other| other == scheme));
        let placed = by_scheme.into_iter().flat_map(|(_, replicas)| replicas).collect();
        let evaluation = self.task.draft_with_placed(&strategy, placed, short)?;
        let ms = self.task.objective.ms(&evaluation);
        self.seen.insert(strategy.clone());
        self.candidates.push(Candidate { strategy, outcome: Outcome::Planned(ms) });
        self.evaluations.push(evaluation);
        Ok(())
    }

    /// Moves to neighbours of the best strategy as long as the time falls and is above the bound.
    fn move_to_neighbours(&mut self, branches: &Branches) -> Result<()> {
        let (enough, mut pool) = (branches.least(), self.schemes(&self.leading));
        pool.dedup();
        while let Some(best) = self.evaluations.iter().min_by_key(|evaluation| self.task.objective.ms(evaluation)) {
            let before = self.task.objective.ms(best);
            let bounded = self.task.objective.bounded_ms(best);
            let is_overlapped = before <= bounded * (1.0 + self.budget.exposed);
            if (is_overlapped && enough >= bounded * (1.0 - self.budget.near)) || self.is_spent() {
                break;
            }
            let mut around = neighbours(&best.strategy, &pool, self.cluster());
            around.retain(|other| !self.seen.contains(other));
            let Some(values) = Values::by(before * (1.0 - self.budget.near), branches, &self.classes) else { break };
            let mut around = values.promising(around.into_iter());
            if let Some(relieves) = self.relieves(best) {
                around.sort_by_key(|other| !relieves(other));
            }
            self.evaluate_shortest(around, self.budget.neighbours)?;
            if self.least() >= before {
                break;
            }
        }
        Ok(())
    }

    /// Whether a strategy has more replicas than this evaluation's that admit the longest sequence of the replica that ends
    /// last, and at least as many of that replica's scheme; none if no replica has a sequence.
    fn relieves(&self, evaluation: &Evaluation) -> Option<impl Fn(&Strategy) -> bool + use<>> {
        let (slowest, longest) = evaluation.bottleneck(self.task.batch)?;
        let costs = self.classes.iter().map(|class| class.capacity.cost());
        let admitting: BTreeSet<Scheme> = costs.filter(|cost| cost.admits(longest)).map(ClassCost::scheme).collect();
        let counts = move |strategy: &Strategy| {
            let number = |is_counted: &dyn Fn(&Scheme) -> bool| {
                let runs = strategy.schemes().chunk_by(|one, other| one == other);
                runs.filter(|run| is_counted(&run[0])).map(<[Scheme]>::len).sum::<usize>()
            };
            (number(&|scheme| admitting.contains(scheme)), number(&|scheme| *scheme == slowest))
        };
        let own = counts(&evaluation.strategy);
        Some(move |other: &Strategy| {
            let (admitting, alike) = counts(other);
            admitting > own.0 && alike >= own.1
        })
    }

    /// Restarts local search from the rounded replica counts of the bound's branches, if the plan of one is shorter.
    fn restart(&mut self, branches: &Branches) -> Result<()> {
        let (before, most) = (self.least(), self.evaluations.len() + self.budget.restarts);
        for part in branches.parts() {
            if self.evaluations.len() < most {
                self.evaluate_counts(&part.rounded(self.cluster().gpus()))?;
            }
        }
        if self.least() < before { self.move_to_neighbours(branches) } else { Ok(()) }
    }

    /// Restarts local search from listed strategies, if the plan of one is shorter: exposed transfers, or pipelines
    /// that the dual program cannot distinguish, may leave local search in a worse optimum.
    fn restart_from_list(&mut self, listed: &[Strategy], branches: &Branches) -> Result<()> {
        let before = self.least();
        let enough = before * (1.0 - self.budget.near);
        let Some(values) = Values::by(enough, branches, &self.classes) else { return Ok(()) };
        let unseen = listed.iter().filter(|strategy| !self.seen.contains(strategy));
        let mut promising = values.promising(unseen.cloned());
        promising.truncate(self.estimated());
        // As in `evaluate`, on ranks of different speed estimates alone decide.
        if self.cluster().is_uniform() {
            promising = self.by_bound(promising, enough);
        }
        self.evaluate_shortest(promising, self.budget.restarts)?;
        if self.least() < before { self.move_to_neighbours(branches) } else { Ok(()) }
    }

    /// The strategies whose bounds are below `enough`, in the order of their bounds.
    fn by_bound(&self, strategies: Vec<Strategy>, enough: Millis) -> Vec<Strategy> {
        let bounded = strategies.into_iter().filter_map(|strategy| Some((self.bound(&strategy)?, strategy)));
        let mut bounded: Vec<(Millis, Strategy)> = bounded.collect();
        bounded.retain(|(bound, _)| *bound < enough);
        bounded.sort();
        bounded.into_iter().map(|(_, strategy)| strategy).collect()
    }

    /// Plans at most `most` strategies of equal replicas of the leading classes that by their values may be shorter than the
    /// best plan.
    fn try_equal_replicas(&mut self, branches: &Branches, most: usize) -> Result<()> {
        let enough = self.least() * (1.0 - self.budget.near);
        let Some(values) = Values::by(enough, branches, &self.classes) else { return Ok(()) };
        let cluster = self.cluster();
        let placed = |scheme: Scheme, number: usize| {
            Strategy::new(vec![scheme; number]).ok().filter(|strategy| place(strategy, cluster).is_ok())
        };
        // As many replicas as aligned ranks allow.
        let equal = |scheme: Scheme| {
            let most = usize::try_from(u64::from(cluster.gpus()) / scheme.ranks()).ok()?;
            let widest = (1..=most).rev().find_map(|number| placed(scheme, number))?;
            (!self.seen.contains(&widest)).then_some(widest)
        };
        let equal = self.schemes(&self.leading).into_iter().filter_map(equal);
        let promising = values.promising(equal);
        self.evaluate_shortest(promising, most)
    }

    /// Number of strategies that one step may estimate.
    fn estimated(&self) -> usize {
        let kinds = if self.task.has_several_orders() { self.budget.estimated_on_kinds } else { 1 };
        kinds * self.budget.estimated_sequences / self.task.batch.len()
    }

    /// Plans at most `most` of the strategies, those of the least estimate.
    fn evaluate_shortest(&mut self, mut strategies: Vec<Strategy>, most: usize) -> Result<()> {
        strategies.truncate(self.estimated());
        let estimated = strategies.into_iter().filter_map(|other| Some((self.task.estimate(&other)?, other)));
        let mut promising: Vec<(Millis, Strategy)> = estimated.collect();
        promising.sort();
        let most = self.evaluations.len() + most;
        for (_, strategy) in promising {
            if self.evaluations.len() >= most {
                break;
            }
            self.evaluate(strategy)?;
        }
        Ok(())
    }

    /// Merges micro-batches of the best plans, of few ones if the best is near its bound; a plan that is longer by more than
    /// merging gains is left out.
    fn merge_best(&mut self, bound: Millis) -> Result<()> {
        let LocalSearchBudget { merged, merged_sequences, merge_gain, .. } = self.budget;
        let (most, plans) = (self.least() * (1.0 + merge_gain), merged.max(merged_sequences / self.task.batch.len()));
        let mut order: Vec<(Millis, usize)> = (0..self.evaluations.len())
            .map(|place| (self.task.objective.ms(&self.evaluations[place]), place))
            .collect();
        order.sort_unstable();
        let near = order.iter().take_while(|(ms, _)| *ms <= most).take(plans);
        for (merges, &(_, place)) in near.enumerate() {
            if merges >= merged && bound >= self.least_bounded() * (1.0 - self.budget.near) {
                break;
            }
            let merged = self.task.merged(self.evaluations[place].clone())?;
            let ms = self.task.objective.ms(&merged);
            for candidates in self.candidates.iter_mut().filter(|other| other.strategy == merged.strategy) {
                candidates.outcome = Outcome::Planned(ms);
            }
            self.evaluations[place] = merged;
        }
        Ok(())
    }

    pub(super) fn evaluate_counts(&mut self, counts: &[usize]) -> Result<()> {
        self.strategy_of(counts).map_or(Ok(()), |strategy| self.evaluate(strategy))
    }

    /// The strategy with `counts` replicas of each scheme; none if they cannot be placed.
    fn strategy_of(&self, counts: &[usize]) -> Option<Strategy> {
        let classes = self.classes.iter().zip(counts);
        let replicas = classes.flat_map(|(class, &count)| std::iter::repeat_n(class.capacity.cost().scheme(), count));
        Strategy::new(replicas.collect()).ok().filter(|strategy| place(strategy, self.cluster()).is_ok())
    }

    /// Plans a new strategy, unless ranks are equal and its bound is above the best time less 0.1 %.
    fn evaluate(&mut self, strategy: Strategy) -> Result<()> {
        if self.is_spent() || !self.seen.insert(strategy.clone()) {
            return Ok(());
        }
        let enough = self.least() * (1.0 - self.budget.near);
        // Before the first plan any time is good enough: programs at an infinite one would need capacities of their own.
        // Programs for every placement on ranks of different speed take longer than the plans that they save.
        let is_bounded = !self.evaluations.is_empty() && self.cluster().is_uniform();
        let ruled_out = || self.bounder.rules_out(self.task.capacities(), &strategy, enough);
        let is_ruled_out = if is_bounded { ruled_out() } else { Some(false) };
        let Some(is_ruled_out) = is_ruled_out.filter(|_| self.task.admits(&strategy)) else { return Ok(()) };
        let outcome = if is_ruled_out {
            Outcome::Pruned(enough)
        } else {
            let evaluation = self.task.draft(&strategy)?;
            let outcome = Outcome::Planned(self.task.objective.ms(&evaluation));
            self.evaluations.push(evaluation);
            outcome
        };
        self.candidates.push(Candidate { strategy, outcome });
        Ok(())
    }

    /// Whether the budget allows no further plan; it always allows one, so that a plan exists.
    fn is_spent(&self) -> bool {
        let most = self.task.budget.candidates.min(self.budget.planned_sequences / self.task.batch.len());
        !self.evaluations.is_empty() && self.evaluations.len() >= most
    }

    /// The strategy's lower bound; bounds above the best plan's time are not proven.
    fn bound(&self, strategy: &Strategy) -> Option<Millis> {
        let limit = ProofLimit { until: self.least(), dual_solves: 1 };
        self.bounder.of_strategy(self.task.capacities(), strategy, limit).map(|bound| bound.ms)
    }

    /// The schemes of these classes.
    fn schemes(&self, classes: &[usize]) -> Vec<Scheme> {
        classes.iter().map(|&class| self.classes[class].capacity.cost().scheme()).collect()
    }

    pub(super) fn cluster(&self) -> &Cluster {
        self.task.capacities().cost().cluster()
    }

    /// The best time so far.
    pub(super) fn least(&self) -> Millis {
        self.task.objective.least(&self.evaluations)
    }

    /// The least time so far that no bound is above.
    pub(super) fn least_bounded(&self) -> Millis {
        self.task.least_bounded(&self.evaluations)
    }
}
