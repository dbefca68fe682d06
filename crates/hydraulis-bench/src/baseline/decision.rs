//! A method's decision for a batch.

use hydraulis_core::batch::Batch;
use hydraulis_core::spec::Strategy;

use crate::numbers::length;

/// The micro-batches of each replica, in running order: replica, micro-batch, sequence ids.
pub type Work = Vec<Vec<Vec<usize>>>;

/// Some sequences of a batch under one strategy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase {
    /// The replicas.
    pub strategy: Strategy,
    /// The work of each replica, in the strategy's order; empty for an idle replica.
    pub work: Work,
}

/// A method's whole decision for one batch: phases that run one after another, nearly always a single one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The phases.
    pub phases: Vec<Phase>,
}

impl Decision {
    /// A decision for one strategy.
    pub fn new(strategy: Strategy, work: Work) -> Decision {
        Decision { phases: vec![Phase { strategy, work }] }
    }

    /// Number of micro-batches.
    pub fn micro_batches(&self) -> usize {
        self.phases.iter().flat_map(|phase| &phase.work).map(Vec::len).sum()
    }

    /// The strategies in the order of the phases, joined by `;`.
    pub fn strategy(&self) -> String {
        let names: Vec<String> = self.phases.iter().map(|phase| phase.strategy.to_string()).collect();
        names.join(";")
    }
}

/// The ids of a batch, longest first; equal lengths keep their order.
pub(crate) fn longest_first(batch: &Batch) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..batch.len()).collect();
    ids.sort_by_key(|&id| (std::cmp::Reverse(batch.tokens()[id]), id));
    ids
}

/// The batch of these sequences alone; its ids are indices into `ids`.
pub(crate) fn part(batch: &Batch, ids: &[usize]) -> hydraulis_core::Result<Batch> {
    let lengths: Vec<i64> = ids.iter().map(|&id| length(batch.tokens()[id])).collect();
    Batch::new(&lengths, None)
}
