//! One strategy of equal replicas for a whole run.

use hydraulis_core::batch::Batch;
use hydraulis_core::cost::CostModel;
use hydraulis_core::{Millis, Tokens};

use crate::baseline::{Decision, EqualReplicas, Work};
use crate::error::{Error, Result};

/// A way to deal a batch onto equal replicas that admit all of its sequences.
pub type Deal = fn(&Batch, &EqualReplicas<'_>) -> Work;

/// A way to deal, and the strategy that suits it best.
#[derive(Clone, Debug)]
pub struct Fixed<'a> {
    deal: Deal,
    replicas: EqualReplicas<'a>,
}

impl<'a> Fixed<'a> {
    /// The strategy that takes least time over all of `batches`, among those that admit `longest` tokens.
    ///
    /// To know the whole run beforehand is more than any such system knows; it makes the comparison harder.
    pub fn best(
        name: &'static str,
        deal: Deal,
        cost: &'a CostModel,
        batches: &[Batch],
        longest: Tokens,
    ) -> Result<Fixed<'a>> {
        let every = EqualReplicas::every(cost)?;
        let limit = every.iter().map(|replicas| replicas.cost.longest()).max().unwrap_or_default();
        let wide = every.into_iter().filter(|replicas| replicas.cost.admits(longest));
        let total = |replicas: &EqualReplicas| -> Millis {
            batches.iter().map(|batch| replicas.time(batch, &deal(batch, replicas))).sum()
        };
        let best = wide.min_by_key(total).ok_or(Error::NoStatic { name, tokens: longest, limit })?;
        Ok(Fixed { deal, replicas: best })
    }

    /// Deals a batch, none of whose sequences is longer than admitted.
    pub fn decide(&self, batch: &Batch) -> Decision {
        let work = self.replicas.spaced(batch, (self.deal)(batch, &self.replicas));
        Decision::new(self.replicas.strategy.clone(), work)
    }
}
