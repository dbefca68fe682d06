//! Length buckets, each with equal replicas over the whole cluster, run one after another: the method of `HotSPa`.
//!
//! Short sequences need not wait for a strategy for long ones; in exchange, every bucket must fill the whole cluster by
//! itself. Switching between the buckets' strategies costs nothing here, as for every method.

use hydraulis_core::Tokens;
use hydraulis_core::batch::Batch;
use hydraulis_core::cost::CostModel;

use crate::baseline::decision::part;
use crate::baseline::{Decision, Fixed, Phase, Work, assigners};
use crate::error::Result;

/// Upper ends of the buckets in its published runs, 32K, 16K and 4K, as divisors of the context.
const DIVISORS: [u64; 3] = [1, 2, 8];

/// A fixed strategy for each bucket of lengths.
#[derive(Clone, Debug)]
pub struct Buckets<'a> {
    /// Greatest length and strategy of each bucket, the greatest length first.
    buckets: Vec<(Tokens, Fixed<'a>)>,
}

impl<'a> Buckets<'a> {
    /// Creates buckets up to a context of `longest` tokens. Each bucket has the strategy that is best for its sequences
    /// over all of `batches`, among the strategies that admit the bucket's greatest length.
    pub fn best(name: &'static str, cost: &'a CostModel, batches: &[Batch], longest: Tokens) -> Result<Buckets<'a>> {
        let limits = limits(longest);
        let bucket = |(index, &limit): (usize, &Tokens)| {
            let parts = batches.iter().map(|batch| split(batch, &limits).swap_remove(index));
            let parts = batches.iter().zip(parts).filter(|(_, ids)| !ids.is_empty());
            let parts: Vec<Batch> =
                parts.map(|(batch, ids)| part(batch, &ids)).collect::<hydraulis_core::Result<_>>()?;
            Ok((limit, Fixed::best(name, assigners::static_balanced, cost, &parts, limit)?))
        };
        Ok(Buckets { buckets: limits.iter().enumerate().map(bucket).collect::<Result<_>>()? })
    }

    /// Decides one phase for each bucket that contains a sequence.
    pub fn decide(&self, batch: &Batch) -> Result<Decision> {
        let limits: Vec<Tokens> = self.buckets.iter().map(|(limit, _)| *limit).collect();
        let mut phases = Vec::new();
        for (ids, (_, fixed)) in split(batch, &limits).into_iter().zip(&self.buckets) {
            if !ids.is_empty() {
                let decided = fixed.decide(&part(batch, &ids)?).phases.into_iter();
                phases.extend(decided.map(|phase| Phase { work: renamed(phase.work, &ids), ..phase }));
            }
        }
        Ok(Decision { phases })
    }
}

/// The greatest length of each bucket, in descending order.
fn limits(longest: Tokens) -> Vec<Tokens> {
    let mut limits: Vec<Tokens> = DIVISORS.iter().map(|divisor| Tokens((longest.0 / divisor).max(1))).collect();
    limits.dedup();
    limits
}

/// The ids of each bucket: a sequence belongs to the narrowest bucket that admits it.
fn split(batch: &Batch, limits: &[Tokens]) -> Vec<Vec<usize>> {
    let mut buckets = vec![Vec::new(); limits.len()];
    for (id, &tokens) in batch.tokens().iter().enumerate() {
        let narrowest = limits.iter().rposition(|&limit| tokens <= limit).unwrap_or(0);
        buckets[narrowest].push(id);
    }
    buckets
}

/// The work of a part of a batch, with the ids of the whole batch.
fn renamed(work: Work, ids: &[usize]) -> Work {
    let micro_batch = |local: Vec<usize>| local.into_iter().map(|id| ids[id]).collect();
    work.into_iter().map(|replica| replica.into_iter().map(micro_batch).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_belongs_to_the_narrowest_sufficient_bucket() {
        let limits = limits(Tokens(32_768));
        assert_eq!(limits, [Tokens(32_768), Tokens(16_384), Tokens(4_096)]);
        let batch = Batch::new(&[16_384, 4_097, 32_768, 4_096, 16_385], None).unwrap();
        assert_eq!(split(&batch, &limits), [vec![2, 4], vec![0, 1], vec![3]]);
    }

    #[test]
    fn a_short_context_has_fewer_buckets() {
        assert_eq!(super::limits(Tokens(1)), [Tokens(1)]);
        assert_eq!(super::limits(Tokens(2)), [Tokens(2), Tokens(1)]);
    }
}
