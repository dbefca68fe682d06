//! The capacities of a cost model's classes.

use std::sync::Arc;

use crate::capacity::CapacityTable;
use crate::capacity::ClassCapacity;
use crate::cost::{ClassId, CostModel};
use crate::error::Result;
use crate::spec::{CapacityBudget, Scheme};

/// A cost model, and the capacity of each of its classes with room for a token.
#[derive(Clone, Debug)]
pub struct Capacities {
    cost: CostModel,
    /// Capacity of each class; none if a replica has no room for a token.
    classes: Vec<Option<ClassCapacity>>,
}

impl Capacities {
    /// The capacities under `cost`; pipelines with equal stages and passes share their capacity tables.
    pub fn new(cost: CostModel, budget: CapacityBudget) -> Capacities {
        let mut tables: Vec<Arc<CapacityTable>> = Vec::new();
        let classes = cost.classes().iter().map(|scheme| {
            let (stages, forward_share) = (scheme.stage_multipliers(), scheme.forward_share());
            let known = tables.iter().find(|table| table.is_of(stages, forward_share)).cloned();
            let table = known.unwrap_or_else(|| {
                tables.push(Arc::new(CapacityTable::new(stages, forward_share, budget)));
                Arc::clone(&tables[tables.len() - 1])
            });
            (scheme.cap().0 > 0).then(|| ClassCapacity::with(scheme.clone(), table, budget))
        });
        let classes = classes.collect();
        Capacities { cost, classes }
    }

    /// The cost model.
    pub fn cost(&self) -> &CostModel {
        &self.cost
    }

    /// The capacity of one class, which must admit at least one token.
    pub fn scheme(&self, scheme: Scheme) -> Result<&ClassCapacity> {
        self.cost.class_of(scheme).map(|class| self.class(class))
    }

    /// The capacity of one class of the cost model.
    pub fn class(&self, class: ClassId) -> &ClassCapacity {
        self.classes[class.index()].as_ref().expect("every class that the cost model gives has room for a token")
    }
}
