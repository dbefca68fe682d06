//! The capacities of a cost model's classes.

use std::sync::Arc;

use crate::capacity::ClassCapacity;
use crate::capacity::placed_classes::PlacedClasses;
use crate::capacity::relaxed_class::{RelaxedClass, SpeedLevels};
use crate::cost::{ClassCost, CostModel, ReplicaClass};
use crate::error::Result;
use crate::layout::{PlacementOrder, place_in_order};
use crate::spec::{CapacityBudget, Scheme, Strategy};
use crate::timing::Exposure;

/// A cost model, and the capacity of each class of replicas that a strategy's placement makes.
#[derive(Clone, Debug)]
pub struct Capacities {
    known: Arc<Known>,
    /// The order in which replicas take ranks of several kinds.
    order: PlacementOrder,
}

/// The capacities of every order of placement.
#[derive(Debug)]
struct Known {
    cost: CostModel,
    /// Capacity of each scheme on the cluster's best ranks; none if a replica has no room for a token.
    best: Vec<Option<ClassCapacity>>,
    /// Capacities of the classes on other ranks, computed on first use.
    placed: PlacedClasses,
    levels: SpeedLevels,
    /// Optimistic classes of a cluster with ranks of different speed; see [`RelaxedClass`].
    relaxed: Vec<RelaxedClass>,
}

impl Capacities {
    /// The capacities under `cost`, where replicas take the fastest ranks first.
    pub fn new(cost: CostModel, budget: CapacityBudget) -> Capacities {
        let bounding = |best: &ClassCost| cost.exceeding(best.class().clone()).ok();
        let capacity = |best: &ClassCost| bounding(best).map(|bounding| ClassCapacity::new(bounding, budget));
        let best = cost.best().iter().map(capacity).collect();
        let levels = SpeedLevels::of_cluster(cost.cluster(), budget.speed_levels);
        let relaxed = levels.relaxed(&cost, |cost| ClassCapacity::new(cost, budget).for_bounds());
        let placed = PlacedClasses::new(&cost, budget);
        let known = Known { cost, best, placed, levels, relaxed };
        Capacities { known: Arc::new(known), order: PlacementOrder::default() }
    }

    /// The capacities under `cost` by the end of a step, in which replicas on the cluster's best ranks have at least these
    /// exposures to transfers, one for each stage.
    pub(crate) fn exposed<'e>(
        cost: CostModel,
        budget: CapacityBudget,
        exposures: impl Fn(Scheme) -> Option<&'e [Exposure]>,
    ) -> Capacities {
        let mut capacities = Capacities::new(cost, budget);
        let known = Arc::get_mut(&mut capacities.known).expect("new capacities are not shared");
        for best in &mut known.best {
            *best = best.take().map(|capacity| match exposures(capacity.cost().scheme()) {
                Some(exposures) => capacity.exposed(exposures),
                None => capacity,
            });
        }
        capacities
    }

    /// The same capacities in each order of placement that a planner tries, these first.
    pub(crate) fn in_each_order(self) -> Vec<Capacities> {
        let orders = PlacementOrder::all(self.cost().cluster());
        orders.into_iter().map(|order| Capacities { order, ..self.clone() }).collect()
    }

    /// The ranks of each replica of a strategy.
    pub(crate) fn place(&self, strategy: &Strategy) -> Result<Vec<Vec<u32>>> {
        place_in_order(strategy, self.cost().cluster(), &self.order)
    }

    /// The cost model.
    pub fn cost(&self) -> &CostModel {
        &self.known.cost
    }

    /// The capacity of one scheme on the cluster's best ranks, which must admit at least one token.
    pub fn scheme(&self, scheme: Scheme) -> Result<&ClassCapacity> {
        self.known.cost.scheme(scheme)?;
        let found = self.known.best.iter().flatten().find(|capacity| capacity.cost().scheme() == scheme);
        Ok(found.expect("every class that the cost model gives has room for a token"))
    }

    /// The classes of a strategy's replicas where they are placed, in the strategy's order, each with the number of
    /// consecutive replicas. Every replica must admit at least one token.
    pub fn classes(&self, strategy: &Strategy) -> Result<Vec<(&ClassCapacity, usize)>> {
        let cost_model = self.cost();
        if cost_model.cluster().is_uniform() {
            return strategy.groups().into_iter().map(|(scheme, number)| Ok((self.scheme(scheme)?, number))).collect();
        }
        let mut classes: Vec<(&ClassCapacity, usize)> = Vec::new();
        for (&scheme, ranks) in strategy.schemes().iter().zip(self.place(strategy)?) {
            let class = ReplicaClass::of_ranks(scheme, cost_model.profile(), cost_model.cluster(), &ranks);
            match classes.last_mut() {
                Some((last, number)) if *last.cost().class() == class => *number += 1,
                _ => classes.push((self.known.placed.capacity(class, cost_model)?, 1)),
            }
        }
        Ok(classes)
    }

    /// The class of each replica of a strategy, in the strategy's order; see [`Capacities::classes`].
    pub fn replicas(&self, strategy: &Strategy) -> Result<Vec<&ClassCapacity>> {
        let classes = self.classes(strategy)?;
        Ok(classes.into_iter().flat_map(|(class, number)| std::iter::repeat_n(class, number)).collect())
    }

    /// Number of ranks of each level of speed and of faster ones, the slowest level first; all ranks are of the first.
    pub(crate) fn level_ranks(&self) -> &[u32] {
        self.known.levels.ranks()
    }

    /// The optimistic classes of a cluster with ranks of different speed or memory; none if all are alike.
    pub(crate) fn relaxed(&self) -> &[RelaxedClass] {
        &self.known.relaxed
    }
}
