//! One strategy, planned for one batch.

use std::cmp::Reverse;

use crate::cost::CostModel;
use crate::dispatch::{Stop, estimate, longest_first, refine};
use crate::error::Result;
use crate::lengths::Batch;
use crate::pack::Packing;
use crate::spec::Strategy;
use crate::units::{Millis, count};

/// Replicas packed anew while one strategy is refined; counted, so that plans are the same on any machine.
/// On the 32B profile, 200,000 tokens and 64 GPUs, most strategies reach a local optimum within 300.
const REFINE_BUDGET: usize = 1_000;
/// Times within this share of each other count as equal; the cost model knows no better.
pub(super) const TIE: f64 = 1e-3;

/// A batch on its way through the planner: with its sequences in order, longest first.
pub(super) struct Task<'a> {
    pub(super) batch: &'a Batch,
    pub(super) cost: &'a CostModel,
    by_length: Vec<usize>,
}

/// A strategy planned for the batch.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) strategy: Strategy,
    pub(super) packings: Vec<Packing>,
    pub(super) iteration_ms: Millis,
    gpu_ms: f64,
    pub(super) stop: Stop,
}

impl<'a> Task<'a> {
    pub(super) fn new(batch: &'a Batch, cost: &'a CostModel) -> Task<'a> {
        let mut by_length: Vec<usize> = (0..batch.len()).collect();
        by_length.sort_by_key(|&id| (Reverse(batch.tokens()[id]), id));
        Task { batch, cost, by_length }
    }

    /// Dispatches, refines and packs.
    pub(super) fn attempt(&self, strategy: &Strategy) -> Result<Attempt> {
        let mut assignment = longest_first(self.batch, &self.by_length, strategy, self.cost)?;
        let stop = refine(&mut assignment, self.batch.tokens(), REFINE_BUDGET);
        let sequences = assignment.sequences().to_vec();
        let pack = |(replica, ids): (usize, &Vec<usize>)| assignment.packer(replica).pack(ids);
        let packings: Vec<Packing> = sequences.iter().enumerate().map(pack).collect();
        let weighed = strategy.schemes().iter().zip(&packings);
        let gpu_ms = weighed.map(|(scheme, packing)| count(scheme.ranks()) * packing.ms.0).sum();
        let iteration_ms = packings.iter().map(|packing| packing.ms).max().unwrap_or_default();
        Ok(Attempt { strategy: strategy.clone(), packings, iteration_ms, gpu_ms, stop })
    }

    /// A rough time, without packing; infinite where a sequence is admitted by no replica.
    pub(super) fn estimate(&self, strategy: &Strategy) -> Millis {
        estimate(self.batch, &self.by_length, strategy, self.cost).unwrap_or(Millis::INFINITY)
    }
}

/// The best attempt: least time, and among those within [`TIE`] of it fewest GPU-seconds, then name order.
pub(super) fn best(attempts: Vec<Attempt>) -> Option<Attempt> {
    let least = attempts.iter().map(|attempt| attempt.iteration_ms).min()?;
    let equal = attempts.into_iter().filter(|attempt| attempt.iteration_ms <= least * (1.0 + TIE));
    equal.min_by(|one, other| {
        let names = || one.strategy.to_string().cmp(&other.strategy.to_string());
        one.gpu_ms.total_cmp(&other.gpu_ms).then_with(names)
    })
}
