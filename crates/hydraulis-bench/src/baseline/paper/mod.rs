//! The Hydraulis paper's two stages (arXiv 2412.07894), over a list of strategies.
//!
//! For each strategy that admits the batch, greedy trials assign sequences to replicas, and each replica's sequences
//! are packed for one micro-batch count after another. A closed form, not a simulation, chooses the count and the
//! strategy; the judge simulates the result like those of all methods.
//!
//! Differences from the paper's artifact:
//! - it packs by an integer program that is stopped after half a second for each count. Here each sequence, longest first,
//!   joins the least loaded pack, and moves and swaps improve the packs: no solver, the same objective;
//! - its minimum of tokens per micro-batch depends on the GPU and is omitted here, so that more counts are tried;
//! - it rejects a strategy when a replica stays empty; here that replica is idle.

mod dispatch;
mod pack;
mod propose;

pub use propose::{PaperGrid, PaperStrategy, paper_list};

use hydraulis_core::batch::Batch;
use hydraulis_core::cost::{ClassCost, CostModel};
use hydraulis_core::spec::Strategy;
use hydraulis_core::{Admitting, Millis};

use crate::baseline::decision::longest_first;
use crate::baseline::packs::spaced;
use crate::baseline::{Decision, Work};
use crate::error::{Error, Result};

/// The paper's method over a list of strategies.
#[derive(Clone, Debug)]
pub struct Paper<'a> {
    strategies: Vec<(Strategy, Vec<&'a ClassCost>)>,
}

impl<'a> Paper<'a> {
    /// Creates the method over `strategies`, whose schemes must have a cost.
    pub fn new(cost: &'a CostModel, strategies: &[Strategy]) -> Result<Paper<'a>> {
        let with_costs = strategies.iter().map(|strategy| {
            let costs = strategy.schemes().iter().map(|&scheme| cost.scheme(scheme));
            Ok((strategy.clone(), costs.collect::<hydraulis_core::Result<_>>()?))
        });
        Ok(Paper { strategies: with_costs.collect::<Result<_>>()? })
    }

    /// The method's decision under the strategy of least closed-form time, the first among equals.
    pub fn decide(&self, batch: &Batch) -> Result<Decision> {
        let by_length = longest_first(batch);
        let planned = self.strategies.iter().filter_map(|(strategy, costs)| {
            let (score, work) = planned(batch, &by_length, costs)?;
            Some((score, strategy, work))
        });
        match planned.min_by_key(|(score, ..)| *score) {
            Some((_, strategy, work)) => Ok(Decision::new(strategy.clone(), work)),
            None => Err(self.too_long(batch)),
        }
    }

    fn too_long(&self, batch: &Batch) -> Error {
        let (sequence, tokens) = batch.longest();
        let widest = self.strategies.iter().flat_map(|(_, costs)| costs).max_by_key(|cost| cost.longest());
        Error::Core(hydraulis_core::Error::SequenceTooLong {
            sequence,
            tokens,
            admitting: Admitting::AnyOf(self.strategies.len()),
            limit: widest.map(|cost| cost.longest()).unwrap_or_default(),
            scheme: widest.map(|cost| cost.scheme()),
        })
    }
}

/// The method's work under one strategy, and the closed-form time of its slowest replica.
fn planned(batch: &Batch, by_length: &[usize], costs: &[&ClassCost]) -> Option<(Millis, Work)> {
    let replica_of = dispatch::dispatch(batch, costs)?;
    let packed = costs.iter().enumerate().map(|(replica, cost)| {
        let ids: Vec<usize> = by_length.iter().copied().filter(|&id| replica_of[id] == replica).collect();
        let (score, packs) = pack::pack(&ids, batch, cost);
        (score, spaced(packs, batch, cost))
    });
    let (scores, work): (Vec<Millis>, Work) = packed.unzip();
    Some((scores.into_iter().max()?, work))
}
