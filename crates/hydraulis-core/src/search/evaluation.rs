//! The plan of one strategy for one batch, as a search compares it.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::batch::Batch;
use crate::construct::pack::Packing;
use crate::plan::{Bound, Candidate, PlannedTransfers, Stop};
use crate::spec::{Scheme, Strategy};
use crate::timing::Exposure;
use crate::units::{Millis, Tokens};

/// The evaluations for a batch, with a bound on all strategies of the planner.
pub(super) struct Found {
    pub(super) evaluations: Vec<Evaluation>,
    pub(super) candidates: Vec<Candidate>,
    /// None if no scheme admits the batch.
    pub(super) bound: Option<Bound>,
}

/// A strategy planned for a batch.
#[derive(Clone, Debug)]
pub(super) struct Evaluation {
    pub(super) strategy: Strategy,
    /// Number of the task's order of placement.
    pub(super) order: usize,
    pub(super) packings: Vec<Packing>,
    pub(super) iteration_ms: Millis,
    pub(super) transfers: Option<PlannedTransfers>,
    /// By how much each replica's part of the step ends later than its packing, because of transfers.
    pub(super) delays: Vec<Millis>,
    /// The exposure of each replica's packing to transfers; none for pipelines.
    pub(super) exposures: Vec<Option<Arc<Exposure>>>,
    /// Time of the replicas' ranks, in GPU-milliseconds.
    pub(super) gpu_ms: f64,
    pub(super) stop: Stop,
}

impl Evaluation {
    /// Order of evaluations of equal time: fewest bytes moved, then fewest GPU-seconds, then name order.
    pub(super) fn cost_order(&self, other: &Evaluation) -> Ordering {
        let names = || self.strategy.to_string().cmp(&other.strategy.to_string());
        let moved = self.moved_bytes().cmp(&other.moved_bytes());
        moved.then(self.gpu_ms.total_cmp(&other.gpu_ms)).then_with(names)
    }

    fn moved_bytes(&self) -> u64 {
        self.transfers.map_or(0, |transfers| transfers.moved_bytes)
    }

    /// The scheme of the replica that ends last, and the longest of its sequences.
    pub(super) fn bottleneck(&self, batch: &Batch) -> Option<(Scheme, Tokens)> {
        let replicas = self.strategy.schemes().iter().zip(&self.packings);
        let (scheme, packing) = replicas.rev().max_by_key(|(_, packing)| packing.ms)?;
        let tokens = packing.micro_batches.iter().flatten().map(|&id| batch.tokens()[id]);
        Some((*scheme, tokens.max()?))
    }
}
