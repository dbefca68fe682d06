//! One strategy, planned for one batch.

use std::cmp::Reverse;

use crate::batch::Batch;
use crate::cancellation::Cancellation;
use crate::capacity::{Capacities, ClassCapacity};
use crate::construct::dispatch::{
    Assignment, Limits, Waits, assign_exactly, assign_to_placed, can_assign_exactly, can_merge, estimate,
    longest_first, merge_micro_batches, or_first_fit, rebalance, refine,
};
use crate::construct::pack::Packing;
use crate::error::Result;
use crate::plan::Stop;
use crate::search::evaluation::Evaluation;
use crate::search::objective::{IterationTime, Objective};
use crate::search::transfers::StrategyTransfers;
use crate::spec::{SearchBudget, Strategy};
use crate::timing::RunLink;
use crate::units::{Millis, Tokens, count};

/// A batch with its ids in order, longest first, and everything that planning one strategy for it needs.
pub(super) struct Task<'a> {
    pub(super) batch: &'a Batch,
    /// The capacities in each order of placement, that of the fastest ranks first.
    by_order: &'a [Capacities],
    link: Option<&'a RunLink>,
    by_length: Vec<usize>,
    pub(super) budget: &'a SearchBudget,
    pub(super) objective: &'static dyn Objective,
    pub(super) cancellation: Cancellation<'a>,
}

impl<'a> Task<'a> {
    /// Counts transfers by `link`, whose schemes are the capacities' schemes, with an objective that counts them. An error from
    /// `cancellation` ends the work on the batch.
    pub(super) fn new(
        batch: &'a Batch,
        by_order: &'a [Capacities],
        link: Option<(&'a RunLink, &'static dyn Objective)>,
        budget: &'a SearchBudget,
        cancellation: Cancellation<'a>,
    ) -> Task<'a> {
        let mut by_length: Vec<usize> = (0..batch.len()).collect();
        by_length.sort_by_key(|&id| (Reverse(batch.tokens()[id]), id));
        let objective: &dyn Objective = link.map_or(&IterationTime, |(_, objective)| objective);
        let link = link.map(|(link, _)| link);
        Task { batch, by_order, link, by_length, budget, objective, cancellation }
    }

    /// The capacities where replicas take the fastest ranks first. Bounds are the same in every order.
    pub(super) fn capacities(&self) -> &'a Capacities {
        &self.by_order[0]
    }

    /// The batch's ids, longest first.
    pub(super) fn by_length(&self) -> &[usize] {
        &self.by_length
    }

    /// Whether the strategy's replicas admit the longest sequence, in some order of placement.
    pub(super) fn admits(&self, strategy: &Strategy) -> bool {
        let (_, longest) = self.batch.longest();
        let usual = self.capacities();
        if usual.cost().cluster().is_uniform() {
            let mut schemes = strategy.schemes().chunk_by(|one, other| one == other).map(|run| run[0]);
            return schemes.any(|scheme| usual.scheme(scheme).is_ok_and(|one| one.cost().admits(longest)));
        }
        self.by_order.iter().any(|capacities| {
            let classes = capacities.classes(strategy);
            classes.is_ok_and(|classes| classes.iter().any(|(class, _)| class.cost().admits(longest)))
        })
    }

    /// The least time of these evaluations that a bound may not exceed; infinite without one.
    pub(super) fn least_bounded(&self, evaluations: &[Evaluation]) -> Millis {
        let bounded = evaluations.iter().map(|evaluation| self.objective.bounded_ms(evaluation));
        bounded.min().unwrap_or(Millis::INFINITY)
    }

    /// Whether ranks are of several kinds, which replicas may take in several orders.
    pub(super) fn has_several_orders(&self) -> bool {
        self.by_order.len() > 1
    }

    /// Estimated time of the strategy, without packing; none if the strategy does not admit every sequence.
    pub(super) fn estimate(&self, strategy: &Strategy) -> Option<Millis> {
        self.shortest_order(strategy).map(|(ms, _)| ms)
    }

    /// The least estimated time of the strategy, and its order of placement; none if no order of these admits every sequence.
    ///
    /// Where ranks are of several kinds, these are the orders in which each pipeline is on one kind of device. A pipeline on
    /// two waits for the slower ranks, and its capacity takes long to compute.
    fn shortest_order(&self, strategy: &Strategy) -> Option<(Millis, usize)> {
        self.shortest_of(strategy, |classes| !self.has_several_orders() || !has_mixed_pipelines(classes))
    }

    /// The least estimated time among the orders that `is_tried` names; orders that make the same replicas are one.
    fn shortest_of(
        &self,
        strategy: &Strategy,
        is_tried: impl Fn(&[(&ClassCapacity, usize)]) -> bool,
    ) -> Option<(Millis, usize)> {
        let mut made: Vec<Vec<(&ClassCapacity, usize)>> = Vec::new();
        let mut shortest: Option<(Millis, usize)> = None;
        for (order, capacities) in self.by_order.iter().enumerate() {
            let Ok(classes) = capacities.classes(strategy) else { continue };
            if !is_tried(&classes) || made.iter().any(|other| have_same_replicas(other, &classes)) {
                continue;
            }
            let estimated = estimate(self.batch, &self.by_length, &classes, self.budget);
            shortest = shortest.into_iter().chain(estimated.map(|ms| (ms, order))).min();
            made.push(classes);
        }
        shortest
    }

    /// Drafts the plan of a strategy, and merges its micro-batches.
    pub(super) fn evaluate(&self, strategy: &Strategy) -> Result<Evaluation> {
        self.merged(self.draft(strategy)?)
    }

    /// Dispatches, refines and packs.
    pub(super) fn draft(&self, strategy: &Strategy) -> Result<Evaluation> {
        let shortest = || self.shortest_order(strategy).or_else(|| self.shortest_of(strategy, |_| true));
        let order = if self.has_several_orders() { shortest().map_or(0, |(_, order)| order) } else { 0 };
        let assignment = longest_first(self.batch, &self.by_length, strategy, &self.by_order[order], self.budget)?;
        let budget = self.budget.dispatch.first_fit;
        let assignment = or_first_fit(assignment, self.batch.tokens(), &self.by_length, budget);
        self.refined(strategy, order, assignment, 0)
    }

    /// Dispatches, refines and packs as `draft` does, but sequences longer than `short` stay on the replicas where they
    /// are placed.
    pub(super) fn draft_with_placed(
        &self,
        strategy: &Strategy,
        placed: Vec<Vec<usize>>,
        short: Tokens,
    ) -> Result<Evaluation> {
        let tokens = self.batch.tokens();
        let budget = self.budget.dispatch;
        let placed = Assignment::of(self.batch, strategy, self.capacities(), placed, self.budget.packing)?;
        let others = self.by_length.partition_point(|&id| tokens[id] > short);
        let assigned = assign_to_placed(&placed, tokens, &self.by_length[others..], budget);
        match assigned.and_then(|assigned| rebalance(&assigned, tokens, &self.by_length, budget)) {
            Some(assignment) => self.refined(strategy, 0, assignment, self.budget.local_search.more_partners),
            None => self.draft(strategy),
        }
    }

    fn refined(
        &self,
        strategy: &Strategy,
        order: usize,
        mut assignment: Assignment,
        more_partners: usize,
    ) -> Result<Evaluation> {
        let stop = refine(&mut assignment, self.batch.tokens(), self.limits(more_partners), self.cancellation)?;
        self.around_transfers(self.packed(strategy, order, assignment, stop)?)
    }

    fn limits(&self, more_partners: usize) -> Limits {
        Limits { packings: self.budget.refinements, more_partners, budget: self.budget.dispatch.refine }
    }

    /// Refines the evaluation again, counting the transfers' exposed time, if it is long; returns the shorter evaluation.
    fn around_transfers(&self, evaluation: Evaluation) -> Result<Evaluation> {
        if !self.waits(&evaluation) {
            return Ok(evaluation);
        }
        let mut assignment = self.assignment(&evaluation)?;
        let stop = refine(&mut assignment, self.batch.tokens(), self.limits(0), self.cancellation)?;
        let later = self.packed(&evaluation.strategy, evaluation.order, assignment, stop)?;
        Ok(if self.is_shorter(&later, &evaluation) { later } else { evaluation })
    }

    /// Whether the exposed time of the evaluation's transfers is long.
    fn waits(&self, evaluation: &Evaluation) -> bool {
        let long = evaluation.iteration_ms * self.budget.local_search.waiting;
        evaluation.transfers.is_some_and(|transfers| transfers.transfer_ms > long)
    }

    fn is_shorter(&self, one: &Evaluation, other: &Evaluation) -> bool {
        self.objective.ms(one) < self.objective.ms(other)
    }

    /// The sequences of an evaluation on its replicas, which wait for transfers if their exposed time is long.
    fn assignment(&self, evaluation: &Evaluation) -> Result<Assignment<'a>> {
        let tokens = self.batch.tokens();
        let by_length = |packing: &Packing| {
            let mut ids = packing.micro_batches.concat();
            ids.sort_unstable_by_key(|&id| (Reverse(tokens[id]), id));
            ids
        };
        let sequences = evaluation.packings.iter().map(by_length).collect();
        let capacities = &self.by_order[evaluation.order];
        let assignment = Assignment::of(self.batch, &evaluation.strategy, capacities, sequences, self.budget.packing)?;
        if !self.waits(evaluation) {
            return Ok(assignment);
        }
        let classes = capacities.replicas(&evaluation.strategy)?;
        Ok(assignment.waiting(|class| {
            let replicas = classes.iter().zip(&evaluation.delays).zip(&evaluation.exposures);
            let own = replicas.filter(|((one, _), _)| one.cost().class() == class);
            own.fold(Waits::default(), |waits, ((_, &delay), exposure)| {
                // An exposure depends on the packing, a pipeline's delay hardly.
                let delay = if exposure.is_some() { Millis::ZERO } else { waits.delay.max(delay) };
                Waits { delay, exposure: exposure.clone() }
            })
        }))
    }

    /// Assigns few sequences exactly, merges micro-batches, and returns the shorter evaluation. A budget without
    /// refinements changes nothing.
    pub(super) fn merged(&self, evaluation: Evaluation) -> Result<Evaluation> {
        let budget = self.budget.dispatch;
        if self.budget.refinements == 0 || !can_merge(self.batch.len(), budget.merge) {
            return Ok(evaluation);
        }
        let (assignment, tokens) = (self.assignment(&evaluation)?, self.batch.tokens());
        let exact = if can_assign_exactly(self.batch.len(), budget.exact) {
            assign_exactly(&assignment, tokens, &self.by_length, budget.exact, self.cancellation)?
        } else {
            None
        };
        let shorter = exact.as_ref().unwrap_or(&assignment);
        let merged = merge_micro_batches(shorter, tokens, &self.by_length, budget, self.cancellation)?;
        let Some(merged) = merged.or(exact) else { return Ok(evaluation) };
        let merged = self.packed(&evaluation.strategy, evaluation.order, merged, evaluation.stop)?;
        Ok(if self.is_shorter(&merged, &evaluation) { merged } else { evaluation })
    }

    fn packed(&self, strategy: &Strategy, order: usize, mut assignment: Assignment, stop: Stop) -> Result<Evaluation> {
        // With a link, a replica that does not end last may still be the one that others wait for.
        let is_linked = self.link.is_some();
        let mut packings = if is_linked { assignment.refined_packings() } else { assignment.refined_where_last() };
        let capacities = &self.by_order[order];
        let of_strategy = |link| StrategyTransfers::new(link, capacities, strategy, &packings);
        let transfers = self.link.map(of_strategy).transpose()?;
        let exposures = transfers.as_ref().map(StrategyTransfers::exposures).unwrap_or_default();
        assignment.overlap_transfers(&mut packings, &exposures);
        let weighed = strategy.schemes().iter().zip(&packings);
        let gpu_ms = weighed.map(|(scheme, packing)| count(scheme.ranks()) * packing.ms.0).sum();
        let iteration_ms = packings.iter().map(|packing| packing.ms).max().unwrap_or_default();
        let step = transfers.map(|transfers| transfers.of_step(self.batch, &packings, iteration_ms));
        let (transfers, delays) = step.unzip();
        let (strategy, delays) = (strategy.clone(), delays.unwrap_or_default());
        Ok(Evaluation { strategy, order, packings, iteration_ms, transfers, delays, exposures, gpu_ms, stop })
    }
}

/// Whether a replica has stages on ranks of different devices.
fn has_mixed_pipelines(classes: &[(&ClassCapacity, usize)]) -> bool {
    let is_mixed = |class: &ClassCapacity| {
        let stages = &class.cost().class().stages;
        stages.iter().any(|pool| pool.device != stages[0].device)
    };
    classes.iter().any(|(class, _)| is_mixed(class))
}

/// Whether two placements of a strategy have equally many replicas of each class.
fn have_same_replicas(one: &[(&ClassCapacity, usize)], other: &[(&ClassCapacity, usize)]) -> bool {
    let number_in = |list: &[(&ClassCapacity, usize)], class: &ClassCapacity| -> usize {
        list.iter().filter(|(other, _)| std::ptr::eq(*other, class)).map(|(_, number)| number).sum()
    };
    let all = one.iter().chain(other);
    all.into_iter().all(|(class, _)| number_in(one, class) == number_in(other, class))
}
