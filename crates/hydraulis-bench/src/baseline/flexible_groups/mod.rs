//! Groups of several sizes, formed again in every step: the method of `FlexSP`.
//!
//! The method sorts the sequences and cuts them into steps. In each step it divides the cluster into groups of one
//! stage, of any sizes that fit the cluster and its nodes; each group runs one micro-batch. The steps run one after
//! another, since the next one divides the cluster differently, and a step takes as long as its slowest group. Five
//! numbers of steps are tried.
//!
//! Differences from the published method:
//! - its groups split sequences over their ranks (all-to-all around attention) and shard the parameters. The cost profiles
//!   have no such entry, so each scheme without a pipeline represents a group of as many ranks, with its cap and time;
//!   parameter gathers in each step and the formation of groups cost nothing;
//! - it solves an integer program over 16 buckets of lengths, stopped after 5 s. Here a climb over sets of groups with moves
//!   and swaps of single sequences replaces it: no solver, no bucket, the same objective.

mod groups;
mod steps;

use std::cmp::Reverse;

use hydraulis_core::batch::Batch;
use hydraulis_core::construct::{mixes, usable_schemes};
use hydraulis_core::cost::{ClassCost, CostModel};
use hydraulis_core::spec::{Scheme, Strategy};
use hydraulis_core::{Millis, Tokens};

use crate::baseline::decision::longest_first;
use crate::baseline::{Decision, Phase};

use groups::{Grouped, grouped};

/// Numbers of steps that are tried, from the smallest that fits the batch.
const TRIALS: usize = 5;

/// The method over the schemes without a pipeline.
#[derive(Clone, Debug)]
pub struct FlexibleGroups<'a> {
    cost: &'a CostModel,
    pool: Vec<Scheme>,
    /// Start sets of a climb: one group of some size and as many of another size as fit.
    starts: Vec<Strategy>,
}

impl<'a> FlexibleGroups<'a> {
    /// Creates the method for the model's cluster.
    pub fn new(cost: &'a CostModel) -> FlexibleGroups<'a> {
        let flat = |scheme: &Scheme| scheme.pp() == 1;
        let pool = usable_schemes(cost).into_iter().filter(flat).collect();
        let starts = mixes(cost).into_iter().filter(|strategy| strategy.schemes().iter().all(flat)).collect();
        FlexibleGroups { cost, pool, starts }
    }

    /// The longest sequence that some group admits.
    pub fn longest_admitted(&self) -> Tokens {
        self.pool
            .iter()
            .filter_map(|&scheme| self.cost.scheme(scheme).ok())
            .map(ClassCost::longest)
            .max()
            .unwrap_or_default()
    }

    /// The steps of least total time over the tried numbers; the batch has no sequence above the admitted length.
    pub fn decide(&self, batch: &Batch) -> Decision {
        let ids = longest_first(batch);
        let lengths: Vec<Tokens> = ids.iter().map(|&id| batch.tokens()[id]).collect();
        let trial = |count: usize| -> Option<Vec<Grouped>> {
            let runs = steps::cut(&lengths, count).into_iter();
            runs.map(|run| grouped(self, batch, &ids[run])).collect()
        };
        // With one step for each sequence, every step is feasible.
        let trials = (self.fewest_steps(batch)..=ids.len()).filter_map(trial).take(TRIALS);
        let total = |steps: &Vec<Grouped>| steps.iter().map(|step| step.ms).sum::<Millis>();
        let best = trials.min_by_key(|steps| (total(steps), Reverse(steps.len()))).unwrap_or_default();
        Decision { phases: best.into_iter().map(Grouped::into_phase).collect() }
    }

    /// Lower bound on the number of steps from the batch's tokens.
    fn fewest_steps(&self, batch: &Batch) -> usize {
        let cap = |&scheme: &Scheme| self.cost.scheme(scheme).map(ClassCost::cap).unwrap_or_default();
        let assigned = self.starts.iter().map(|strategy| strategy.schemes().iter().map(cap).sum::<Tokens>());
        batch.total_tokens().div_ceil(assigned.max().unwrap_or_default().max(Tokens(1)))
    }
}

impl Grouped {
    fn into_phase(self) -> Phase {
        let micro_batches = |ids: Vec<usize>| if ids.is_empty() { Vec::new() } else { vec![ids] };
        Phase { strategy: self.strategy, work: self.groups.into_iter().map(micro_batches).collect() }
    }
}
