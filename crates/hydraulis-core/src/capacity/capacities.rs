//! The capacities of a cost model's schemes.

use std::sync::Arc;

use crate::capacity::FillTable;
use crate::capacity::SchemeCapacity;
use crate::cost::CostModel;
use crate::error::Result;
use crate::spec::{CapacityBudget, Scheme};

/// A cost model, and the capacity of each of its schemes with room for a token.
#[derive(Clone, Debug)]
pub struct Capacities {
    cost: CostModel,
    schemes: Vec<SchemeCapacity>,
}

impl Capacities {
    /// The capacities under `cost`; pipelines alike in stages and passes share their fills.
    pub fn new(cost: CostModel, budget: CapacityBudget) -> Capacities {
        let mut tables: Vec<Arc<FillTable>> = Vec::new();
        let usable = cost.schemes().iter().filter(|scheme| scheme.cap().0 > 0);
        let schemes = usable.map(|scheme| {
            let (stages, forward_share) = (scheme.stage_multipliers(), scheme.forward_share());
            let known = tables.iter().find(|table| table.is_of(stages, forward_share)).cloned();
            let table = known.unwrap_or_else(|| {
                tables.push(Arc::new(FillTable::new(stages, forward_share, budget)));
                Arc::clone(&tables[tables.len() - 1])
            });
            SchemeCapacity::with(scheme.clone(), table, budget)
        });
        let schemes = schemes.collect();
        Capacities { cost, schemes }
    }

    /// The costs behind them.
    pub fn cost(&self) -> &CostModel {
        &self.cost
    }

    /// The capacity of one scheme, which must admit at least one token.
    pub fn scheme(&self, scheme: Scheme) -> Result<&SchemeCapacity> {
        // Of what the profile lacks, or memory does not admit, the cost model says why.
        self.cost.scheme(scheme)?;
        let known = self.schemes.iter().find(|capacity| capacity.cost().scheme() == scheme);
        Ok(known.expect("every scheme that the cost model gives has room for a token"))
    }
}
