//! What no plan can beat: over the strategies given, and over any strategy at all.
//!
//! Two arguments, the greater of which holds:
//! - the longest way: each sequence passes all stages of some replica that admits it, in a micro-batch that costs at
//!   least `a s^2 + b s + c`;
//! - the work: by an impossible time, all replicas together cannot hold what the sequences ask for, whoever takes
//!   which ([`market`]). What a pipeline holds is exact over all its micro-batches ([`crate::schedule::Fill`]).
//!
//! The prices that prove it come from a linear program ([`relaxation`]), the dual of sharing sequences out in
//! fractions (Lenstra, Shmoys and Tardos 1990); whole numbers of replicas and micro-batches from branching
//! ([`branch`]).

mod branch;
mod climb;
mod demand;
mod market;
mod relaxation;

use serde::{Deserialize, Serialize};

use crate::capacity::SchemeCapacity;
use crate::lengths::Batch;
pub(super) use crate::plan::bound::branch::Branches;
use crate::plan::bound::demand::Demand;
pub(super) use crate::plan::bound::demand::Price;
use crate::plan::bound::market::{Market, Offer};
use crate::units::Millis;

/// A plan sums the same terms in another order: without the margin a perfect one could seem to beat the bound.
const MARGIN: f64 = 1.0 - 1e-9;

/// A proven lower bound on the iteration time, and what sets it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    /// No plan is shorter.
    pub ms: Millis,
    /// Which argument proves it.
    pub kind: BoundKind,
}

/// Which argument proves a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BoundKind {
    /// This sequence alone takes that long wherever it is admitted.
    Sequence(usize),
    /// The work of all sequences, shared out perfectly, takes that long.
    Work,
}

/// Proves bounds for one batch.
#[derive(Clone, Debug)]
pub(super) struct Bounder<'a> {
    batch: &'a Batch,
    demand: Demand,
}

impl<'a> Bounder<'a> {
    pub(super) fn new(batch: &'a Batch) -> Bounder<'a> {
        Bounder { batch, demand: Demand::new(batch) }
    }

    /// The longest way over these schemes. None where some sequence is admitted by none of them.
    pub(super) fn longest_way(&self, schemes: &[&SchemeCapacity]) -> Option<Bound> {
        // Only the longest can set it: on every scheme a longer sequence takes longer, and is admitted by no more.
        let (sequence, tokens) = self.batch.longest();
        let admitting = schemes.iter().map(|capacity| capacity.cost()).filter(|cost| cost.admits(tokens));
        let through = admitting
            .map(|cost| cost.micro_batch_ms([tokens].into_iter()) * cost.stage_multipliers().iter().sum::<f64>());
        through.min().map(|ms| Bound { ms: ms * MARGIN, kind: BoundKind::Sequence(sequence) })
    }

    /// The bound for replicas of `groups`: each scheme with its number of replicas.
    pub(super) fn of_strategy(&self, groups: &[(&SchemeCapacity, usize)], gpus: u32, limit: Limit) -> Option<Bound> {
        let schemes: Vec<&SchemeCapacity> = groups.iter().map(|(capacity, _)| *capacity).collect();
        let offers = groups.iter().map(|&(capacity, replicas)| Offer::new(capacity, replicas, replicas)).collect();
        Some(self.work(self.longest_way(&schemes)?, offers, gpus, limit))
    }

    /// The markets of any strategy on `gpus` ranks over `schemes`, in whose order a strategy's counts stand. None where
    /// some sequence is admitted by none of them.
    pub(super) fn of_any<'b>(&'b self, schemes: &[&'b SchemeCapacity], gpus: u32) -> Option<Branches<'b>> {
        let most = |capacity: &SchemeCapacity| usize::try_from(u64::from(gpus) / capacity.cost().scheme().ranks());
        let offers = schemes.iter().map(|&capacity| Offer::new(capacity, 0, most(capacity).unwrap_or(0))).collect();
        let market = Market { demand: &self.demand, offers, gpus };
        Some(Branches::new(market, self.longest_way(schemes)?.ms, Millis::INFINITY))
    }

    fn work(&self, longest_way: Bound, offers: Vec<Offer>, gpus: u32, limit: Limit) -> Bound {
        let mut branches = Branches::new(Market { demand: &self.demand, offers, gpus }, longest_way.ms, limit.until);
        while branches.least() < limit.until && branches.len() < limit.markets && branches.divide(limit.until) {}
        longest_way.or_work(branches.least())
    }
}

impl Bound {
    /// This bound, or that by the work if it is greater.
    pub(super) fn or_work(self, impossible: Millis) -> Bound {
        let ms = impossible * MARGIN;
        if ms > self.ms { Bound { ms, kind: BoundKind::Work } } else { self }
    }
}

/// How far a proof goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    /// A bound that is as late as this is late enough.
    pub(super) until: Millis,
    /// Markets looked at, at most.
    pub(super) markets: usize,
}
