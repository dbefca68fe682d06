//! One strategy of equal replicas for a whole run.

use hydraulis_core::batch::Batch;
use hydraulis_core::cost::CostModel;
use hydraulis_core::{Millis, Tokens};

use crate::baseline::{Decision, EqualReplicas, Work};
use crate::error::{Error, Result};

/// A function that assigns a batch to equal replicas that admit all of its sequences.
pub type Assign = fn(&Batch, &EqualReplicas<'_>) -> Work;

/// An assignment function, and the strategy that suits it best.
#[derive(Clone, Debug)]
pub struct Fixed<'a> {
    assign: Assign,
    replicas: EqualReplicas<'a>,
}

impl<'a> Fixed<'a> {
    /// Chooses the strategy of least total time over all of `batches`, among those that admit `longest` tokens.
    ///
    /// No such system knows the whole run beforehand; this knowledge makes the comparison harder for Hydraulis.
    pub fn best(
        name: &'static str,
        assign: Assign,
        cost: &'a CostModel,
        batches: &[Batch],
        longest: Tokens,
    ) -> Result<Fixed<'a>> {
        let every = EqualReplicas::every(cost)?;
        let limit = every.iter().map(|replicas| replicas.cost.longest()).max().unwrap_or_default();
        let wide = every.into_iter().filter(|replicas| replicas.cost.admits(longest));
        let total = |replicas: &EqualReplicas| -> Millis {
            batches.iter().map(|batch| replicas.time(batch, &assign(batch, replicas))).sum()
        };
        let best = wide.min_by_key(total).ok_or(Error::NoStatic { name, tokens: longest, limit })?;
        Ok(Fixed { assign, replicas: best })
    }

    /// Assigns a batch without sequences above the admitted length.
    pub fn decide(&self, batch: &Batch) -> Decision {
        let work = self.replicas.spaced(batch, (self.assign)(batch, &self.replicas));
        Decision::new(self.replicas.strategy.clone(), work)
    }
}
