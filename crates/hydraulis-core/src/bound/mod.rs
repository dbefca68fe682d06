//! Lower bounds: over the given strategies, and over any strategy.
//!
//! Two arguments; the greater bound holds:
//!
//! - The longest path: each sequence passes all stages of some replica that admits it, in a micro-batch that costs at
//!   least `a s^2 + b s + c` and `d`.
//! - The work: by an impossible time, all replicas together cannot hold the batch, for any assignment
//!   (`dual_program`). The capacity of a pipeline is exact over all its micro-batches
//!   ([`crate::capacity::PipelineCapacity`]).
//!
//! With a link the second is on the step: each stage of a replica has less time for its micro-batches, by the least
//! exposure to the replica's own transfers that any packing leaves (`timing/exposure.rs`). Transfers that other replicas
//! add are not counted.
//!
//! Dual prices cover work, tokens, micro-batches and slots for large sequences; a given strategy's largest group has
//! prices of its own for replicas with few and with many micro-batches. For any prices, a time is impossible if the
//! sequences cost more than the value of all replicas by that time. The best prices come from a linear program
//! (`relaxation`), the dual of dividing sequences (Lenstra, Shmoys and Tardos 1990); of many schemes it has a part
//! (`active`). Branching (`branch`) makes replicas and micro-batches whole. If a plan is still far from its bound, further
//! programs make the longest sequences whole (`long`), over any strategy or for each strategy of a list.

mod active;
mod batch_sums;
mod branch;
mod climb;
mod dual_program;
mod long;
mod relaxation;

use crate::batch::Batch;
use crate::bound::batch_sums::BatchSums;
pub(crate) use crate::bound::batch_sums::Price;
pub(crate) use crate::bound::branch::{Branches, Node};
use crate::bound::climb::rules_out;
use crate::bound::dual_program::{ClassLimits, DualProgram};
use crate::bound::long::{LongProgram, LongSequences, latest_impossible};
use crate::cancellation::Cancellation;
use crate::capacity::{Capacities, ClassCapacity, RelaxedClass};
use crate::error::Result;
use crate::plan::{Bound, BoundKind};
use crate::spec::{BoundBudget, Strategy};
use crate::units::{Millis, whole};

/// A plan sums the same terms in another order: without the margin a perfect plan could seem to beat the bound.
const MARGIN: f64 = 1.0 - 1e-9;

/// The times between which a bound is sought.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProofRange {
    /// A proven bound.
    pub(crate) proven: Millis,
    /// The greatest bound of interest.
    pub(crate) until: Millis,
}

/// Proves bounds for one batch.
#[derive(Clone, Debug)]
pub(crate) struct Bounder<'a> {
    batch: &'a Batch,
    sums: BatchSums,
    budget: BoundBudget,
}

impl<'a> Bounder<'a> {
    pub(crate) fn new(batch: &'a Batch, budget: BoundBudget) -> Bounder<'a> {
        Bounder { batch, sums: BatchSums::new(batch), budget }
    }

    /// The longest path over these classes. None if some sequence is admitted by none of them.
    pub(crate) fn longest_path<'c>(&self, classes: impl Iterator<Item = &'c ClassCapacity>) -> Option<Bound> {
        // Only the longest sequence can set it: on every class a longer sequence takes longer, and is admitted by no
        // more replicas.
        let (sequence, tokens) = self.batch.longest();
        let admitting = classes.map(ClassCapacity::cost).filter(|cost| cost.admits(tokens));
        let through = admitting
            .map(|cost| cost.micro_batch_ms([tokens].into_iter()) * cost.stage_multipliers().iter().sum::<f64>());
        through.min().map(|ms| Bound { ms: ms * MARGIN, kind: BoundKind::Sequence(sequence) })
    }

    /// The bound of one strategy with any placement; none if it does not admit every sequence.
    pub(crate) fn of_strategy(&self, capacities: &Capacities, strategy: &Strategy, limit: ProofLimit) -> Option<Bound> {
        if !capacities.relaxed().is_empty() {
            return self.of_any_placement(capacities, strategy, limit);
        }
        let groups = classes_of(capacities, strategy)?;
        let longest_path = self.longest_path(groups.iter().map(|(capacity, _)| *capacity))?;
        let ranks = capacities.level_ranks().to_vec();
        let root = Branches::new(self.dual(exactly(&groups), ranks), longest_path.ms, limit.until);
        let bound = longest_path.or_work(root.least());
        if bound.ms >= limit.until || limit.dual_solves == 1 {
            return Some(bound);
        }
        let branches = match self.by_count(&groups, root.root()) {
            Some(dual) => Branches::new(dual, root.least(), limit.until),
            None => root,
        };
        Some(bound.or_work(divided(branches, limit)))
    }

    /// Whether no plan of the strategy ends by `end`, whatever the placement: the longest path or at most two linear
    /// programs show it. None if the strategy does not admit every sequence.
    ///
    /// [`Bounder::of_strategy`] would take a few programs more to find the latest such time.
    pub(crate) fn rules_out(&self, capacities: &Capacities, strategy: &Strategy, end: Millis) -> Option<bool> {
        if !capacities.relaxed().is_empty() {
            let limit = ProofLimit { until: end, dual_solves: 1 };
            return self.of_any_placement(capacities, strategy, limit).map(|bound| bound.ms >= end);
        }
        let groups = classes_of(capacities, strategy)?;
        let longest_path = self.longest_path(groups.iter().map(|(capacity, _)| *capacity))?;
        if longest_path.ms >= end {
            return Some(true);
        }
        Some(rules_out(&self.dual(exactly(&groups), capacities.level_ranks().to_vec()), end))
    }

    /// The bound of a strategy on ranks of different speed: its replicas may be of any relaxed classes of their schemes,
    /// but together they have no more ranks than the strategy, and at each speed no more than the cluster.
    fn of_any_placement(&self, capacities: &Capacities, strategy: &Strategy, limit: ProofLimit) -> Option<Bound> {
        let ranks = u32::try_from(strategy.ranks()).unwrap_or(u32::MAX);
        let levels: Vec<u32> = capacities.level_ranks().iter().map(|&at_least| at_least.min(ranks)).collect();
        let groups = strategy.groups();
        let limits = capacities.relaxed().iter().filter_map(|class| {
            let RelaxedClass { capacity, level } = class;
            let &(scheme, replicas) = groups.iter().find(|(scheme, _)| *scheme == capacity.cost().scheme())?;
            let most = usize::try_from(u64::from(levels[*level]) / scheme.ranks()).unwrap_or(replicas);
            Some(ClassLimits { level: *level, ..ClassLimits::new(capacity, 0, replicas.min(most)) })
        });
        let limits: Vec<ClassLimits> = limits.collect();
        let longest_path = self.longest_path(limits.iter().map(|class| class.capacity))?;
        let branches = Branches::new(self.dual(limits, levels), longest_path.ms, limit.until);
        Some(longest_path.or_work(divided(branches, limit)))
    }

    /// The dual program in which the largest group of replicas without a pipeline is split by the number of
    /// micro-batches of each: at most the program's average, or more. Replicas with few micro-batches need longer
    /// sequences, and a single price for both kinds cannot express this.
    ///
    /// Each kind may have any number of replicas, but together they have no more ranks than the groups.
    fn by_count<'b>(&'b self, groups: &[(&'b ClassCapacity, usize)], root: &Node<'b>) -> Option<DualProgram<'b>> {
        let ranks_of = |&(capacity, replicas): &(&ClassCapacity, usize)| {
            capacity.cost().scheme().ranks().saturating_mul(replicas as u64)
        };
        let is_told_apart =
            |&(capacity, replicas): &(&ClassCapacity, usize)| replicas > 1 && capacity.cost().scheme().pp() == 1;
        let places = (0..groups.len()).filter(|&place| is_told_apart(&groups[place]));
        let largest = places.max_by_key(|&place| ranks_of(&groups[place]))?;
        let (replicas, micro_batches) = root.used(largest);
        let few = usize::try_from(whole(micro_batches / replicas.max(1.0))).ok()?;
        let mut classes = root.classes().to_vec();
        let kinds = classes.remove(largest).by_count(few);
        classes.extend(kinds);
        let ranks = u32::try_from(groups.iter().map(ranks_of).sum::<u64>()).ok()?;
        Some(self.dual(classes, vec![ranks]))
    }

    /// The branches of any strategy over these classes, with every time before `from` impossible; a node's counts follow
    /// their order. None if some sequence is admitted by none of them.
    pub(crate) fn of_any<'b>(&'b self, classes: &[AnyClass<'b>], ranks: &[u32], from: Millis) -> Option<Branches<'b>> {
        let limits = classes.iter().map(|class| {
            let most = u64::from(ranks[class.level]) / class.capacity.cost().scheme().ranks();
            ClassLimits {
                level: class.level,
                ..ClassLimits::new(class.capacity, 0, usize::try_from(most).unwrap_or(0))
            }
        });
        let longest_path = self.longest_path(classes.iter().map(|class| class.capacity))?;
        let from = from.max(longest_path.ms);
        Some(Branches::new(self.dual(limits.collect(), ranks.to_vec()), from, Millis::INFINITY))
    }

    /// The bound of any strategy over these classes with whole long sequences, on ranks of one speed: a time of `range`, its
    /// least where many sequences are long. Of many classes, programs begin with `leading`.
    pub(crate) fn of_long(
        &self,
        classes: &[AnyClass],
        leading: Vec<usize>,
        ranks: u32,
        range: ProofRange,
        cancellation: Cancellation,
    ) -> Result<Millis> {
        let limits = classes.iter().map(|class| {
            let most = u64::from(ranks) / class.capacity.cost().scheme().ranks();
            ClassLimits::new(class.capacity, 0, usize::try_from(most).unwrap_or(0))
        });
        let active = if classes.len() > self.budget.whole_classes { leading } else { Vec::new() };
        self.with_whole(limits.collect(), active, ranks, range, cancellation)
    }

    /// The bound of one strategy with whole long sequences, as [`Bounder::of_long`], on ranks of one speed.
    pub(crate) fn of_long_strategy(
        &self,
        capacities: &Capacities,
        strategy: &Strategy,
        range: ProofRange,
        cancellation: Cancellation,
    ) -> Result<Millis> {
        let Some(groups) = classes_of(capacities, strategy) else { return Ok(range.proven) };
        let ranks = u32::try_from(strategy.ranks()).unwrap_or(u32::MAX);
        self.with_whole(exactly(&groups), Vec::new(), ranks, range, cancellation)
    }

    fn with_whole(
        &self,
        classes: Vec<ClassLimits>,
        active: Vec<usize>,
        ranks: u32,
        range: ProofRange,
        cancellation: Cancellation,
    ) -> Result<Millis> {
        let is_small = self.batch.len() <= self.budget.long.sequences;
        let long = LongSequences::new(self.batch, self.budget.long);
        if !is_small || !long.are_few {
            return Ok(range.proven);
        }
        let mut program = LongProgram {
            batch: &self.sums,
            long: &long,
            classes,
            ranks,
            counted: self.budget.counted_micro_batches,
            price_steps: self.budget.price_steps,
            active,
            budget: self.budget.long,
        };
        latest_impossible(&mut program, range.proven, range.until, cancellation)
    }

    fn dual<'b>(&'b self, classes: Vec<ClassLimits<'b>>, ranks: Vec<u32>) -> DualProgram<'b> {
        DualProgram { batch: &self.sums, classes, ranks, active: Vec::new(), budget: self.budget }
    }
}

/// The class of each scheme of a strategy, with its number of replicas; none if a class is unknown.
fn classes_of<'c>(capacities: &'c Capacities, strategy: &Strategy) -> Option<Vec<(&'c ClassCapacity, usize)>> {
    let groups = strategy.groups().into_iter();
    groups.map(|(scheme, replicas)| Some((capacities.scheme(scheme).ok()?, replicas))).collect()
}

/// The limits of a strategy that has exactly these replicas.
fn exactly<'c>(groups: &[(&'c ClassCapacity, usize)]) -> Vec<ClassLimits<'c>> {
    groups.iter().map(|&(capacity, replicas)| ClassLimits::new(capacity, replicas, replicas)).collect()
}

/// A class that any strategy may have replicas of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnyClass<'a> {
    pub(crate) capacity: &'a ClassCapacity,
    /// The level of its ranks' speed.
    pub(crate) level: usize,
}

/// The bound of a dual program after branching, within the limit.
fn divided(mut branches: Branches, limit: ProofLimit) -> Millis {
    while branches.least() < limit.until && branches.len() < limit.dual_solves && branches.divide(limit.until) {}
    branches.least()
}

impl Bound {
    /// This bound, or the bound by work if it is greater.
    pub(crate) fn or_work(self, impossible: Millis) -> Bound {
        let ms = impossible * MARGIN;
        if ms > self.ms { Bound { ms, kind: BoundKind::Work } } else { self }
    }
}

/// The limits of a proof.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProofLimit {
    /// A bound at or after this time is late enough.
    pub(crate) until: Millis,
    /// Most linear programs solved.
    pub(crate) dual_solves: usize,
}
