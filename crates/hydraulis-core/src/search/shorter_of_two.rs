//! Plans that are the shorter of two searches.
//!
//! A plan within caps also satisfies the in-flight limit, and may be shorter than the plan that is found with that limit.
//! Layer plans multiply the schemes, and a search over more schemes gets less far within the same budget: where it ends far
//! from its bound, a search over the schemes with one kind of checkpointing often ends at a shorter plan.

use crate::batch::Batch;
use crate::cancellation::Cancellation;
use crate::error::Result;
use crate::plan::Plan;
use crate::search::Planner;
use crate::spec::Scheme;

impl Planner {
    /// The same plan; an error from `cancellation` ends the work on it.
    pub fn plan_cancellable(&self, batch: &Batch, cancellation: Cancellation) -> Result<Plan> {
        let plan = self.plan_by_rule(batch, cancellation)?;
        let Some(within_caps) = self.within_caps() else { return Ok(plan) };
        plan.or_shorter(within_caps.plan_by_rule(batch, cancellation))
    }

    /// The plan by this planner's memory rule: the shorter of two, if a search with layer plans ends far from its bound.
    /// The bound is the one over all schemes.
    fn plan_by_rule(&self, batch: &Batch, cancellation: Cancellation) -> Result<Plan> {
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
