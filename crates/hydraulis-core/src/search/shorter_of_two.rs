//! Searches without layer plans, where a search with them ends far from its bound.
//!
//! Layer plans multiply the schemes, and a search over more schemes gets less far within the same budget. A search over
//! the schemes with one kind of checkpointing then often ends at a shorter plan.

use crate::batch::Batch;
use crate::cancellation::Cancellation;
use crate::error::Result;
use crate::plan::Plan;
use crate::search::Planner;
use crate::spec::Scheme;

impl Planner {
    /// The plan by this planner's memory rule: the shorter of two, if a search with layer plans ends far from its bound.
    /// The bound is the one over all schemes.
    pub(super) fn plan_by_rule(&self, batch: &Batch, cancellation: Cancellation) -> Result<Plan> {
        let plan = self.plan_of_choice(batch, cancellation)?;
        let is_far = plan.lower_bound.ms < plan.step_ms() * (1.0 - self.budget().local_search.far);
        let Some(uniform) = self.without_layer_plans().filter(|_| is_far) else { return Ok(plan) };
        plan.or_shorter(uniform.plan_of_choice(batch, cancellation))
    }

    /// A search over the schemes with one kind of checkpointing; none for a list, or without other schemes.
    fn without_layer_plans(&self) -> Option<Planner> {
        let is_uniform = |scheme: &Scheme| scheme.layer_plan().kind().is_some();
        if self.pool()?.iter().all(is_uniform) {
            return None;
        }
        Some(self.clone().with_pool(is_uniform))
    }
}
