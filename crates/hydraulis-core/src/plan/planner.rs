//! Chooses the strategy, the dispatch and the packing of each batch together.

use crate::cost::{CostModel, CostProfile, SchemeCost};
use crate::dispatch::{Stop, longest_first, refine};
use crate::error::{Error, Result};
use crate::lengths::Batch;
use crate::pack::Packing;
use crate::plan::bound::lower_bound;
use crate::plan::document::FORMAT;
use crate::plan::{Bound, Considered, Outcome, Plan, ReplicaPlan, Violation, check};
use crate::spec::{Cluster, Strategy};
use crate::strategy::{candidates, place};
use crate::units::{Millis, Tokens, count};

/// Replicas packed anew while one strategy is refined; counted, so that plans are the same on any machine.
/// On the 32B profile, 200,000 tokens and 64 GPUs, most strategies reach a local optimum within 300.
const REFINE_BUDGET: usize = 1_000;
/// Times within this share of each other count as equal; the cost model knows no better.
const TIE: f64 = 1e-3;

/// Plans batches for one model on one cluster over a list of strategies.
#[derive(Clone, Debug)]
pub struct Planner {
    cost: CostModel,
    strategies: Vec<Candidate>,
}

/// A strategy of the list, with what depends on no batch.
#[derive(Clone, Debug)]
struct Candidate {
    strategy: Strategy,
    ranks: Vec<Vec<u32>>,
}

/// A strategy planned for one batch.
struct Attempt<'a> {
    candidate: &'a Candidate,
    packings: Vec<Packing>,
    iteration_ms: Millis,
    gpu_ms: f64,
    stop: Stop,
}

impl Planner {
    /// A planner over `strategies`, or over the profile's own list.
    ///
    /// Every strategy must fit the cluster and use schemes that the profile knows and memory admits.
    pub fn new(profile: CostProfile, cluster: Cluster, strategies: Option<Vec<Strategy>>) -> Result<Planner> {
        let cost = CostModel::new(profile, cluster);
        let list = match strategies {
            Some(list) => list,
            None => candidates(&cost)?,
        };
        if list.is_empty() {
            return Err(Error::NoStrategies);
        }
        let mut strategies: Vec<Candidate> = Vec::new();
        for strategy in list {
            let ranks = place(&strategy, cluster)?;
            strategy.groups().iter().try_for_each(|(scheme, _)| cost.scheme(*scheme).map(drop))?;
            if strategies.iter().all(|known| known.strategy != strategy) {
                strategies.push(Candidate { strategy, ranks });
            }
        }
        Ok(Planner { cost, strategies })
    }

    /// The costs planned with.
    pub fn cost(&self) -> &CostModel {
        &self.cost
    }

    /// The strategies chosen from.
    pub fn strategies(&self) -> impl Iterator<Item = &Strategy> {
        self.strategies.iter().map(|candidate| &candidate.strategy)
    }

    /// The longest sequence that some strategy admits.
    pub fn longest_admitted(&self) -> Tokens {
        self.widest().map(SchemeCost::cap).unwrap_or_default()
    }

    /// The plan of least iteration time found over the list, with a proven bound.
    ///
    /// Strategies are tried in the order of their lower bounds, and those whose bound is above the best plan
    /// are not tried at all. Among plans equal within 0.1 % the one of fewest GPU-seconds wins, then name
    /// order. The same batch always gives the same plan.
    pub fn plan(&self, batch: &Batch) -> Result<Plan> {
        let mut by_length: Vec<usize> = (0..batch.len()).collect();
        by_length.sort_by_key(|&id| (std::cmp::Reverse(batch.tokens()[id]), id));
        let bounds = self.bounds(batch);
        let mut promising: Vec<(Millis, usize)> =
            bounds.iter().enumerate().filter_map(|(index, bound)| Some((bound.as_ref()?.ms, index))).collect();
        promising.sort_unstable();
        let mut best = Millis::INFINITY;
        let mut attempts = Vec::new();
        for &(bound, index) in &promising {
            if bound <= best * (1.0 + TIE) {
                let attempt = self.attempt(batch, &by_length, &self.strategies[index])?;
                best = best.min(attempt.iteration_ms);
                attempts.push(attempt);
            }
        }
        let considered = self.considered(&bounds, &attempts);
        let chosen = choose(attempts).ok_or_else(|| self.too_long(batch))?;
        let bound = bounds.into_iter().flatten().min_by_key(|bound| bound.ms).ok_or_else(|| self.too_long(batch))?;
        Ok(self.document(batch, chosen, bound, considered))
    }

    /// Every promise that `plan` breaks for `batch`; see [`check`].
    pub fn check(&self, plan: &Plan, batch: &Batch) -> Vec<Violation> {
        check(plan, batch, &self.cost)
    }

    fn bounds(&self, batch: &Batch) -> Vec<Option<Bound>> {
        let bound = |candidate: &Candidate| {
            let groups = candidate.strategy.groups();
            let groups = groups.iter().map(|(scheme, replicas)| Some((self.cost.scheme(*scheme).ok()?, *replicas)));
            lower_bound(batch, &groups.collect::<Option<Vec<_>>>()?)
        };
        self.strategies.iter().map(bound).collect()
    }

    fn attempt<'a>(&'a self, batch: &'a Batch, by_length: &[usize], candidate: &'a Candidate) -> Result<Attempt<'a>> {
        let mut assignment = longest_first(batch, by_length, &candidate.strategy, &self.cost)?;
        let stop = refine(&mut assignment, batch.tokens(), REFINE_BUDGET);
        let sequences = assignment.sequences().to_vec();
        let pack = |(replica, ids): (usize, &Vec<usize>)| assignment.packer(replica).pack(ids);
        let packings: Vec<Packing> = sequences.iter().enumerate().map(pack).collect();
        let weighed = candidate.strategy.schemes().iter().zip(&packings);
        let gpu_ms = weighed.map(|(scheme, packing)| count(scheme.ranks()) * packing.ms.0).sum();
        let iteration_ms = packings.iter().map(|packing| packing.ms).max().unwrap_or_default();
        Ok(Attempt { candidate, packings, iteration_ms, gpu_ms, stop })
    }

    fn considered(&self, bounds: &[Option<Bound>], attempts: &[Attempt]) -> Vec<Considered> {
        let outcome = |(candidate, bound): (&Candidate, &Option<Bound>)| {
            let attempt = attempts.iter().find(|attempt| std::ptr::eq(attempt.candidate, candidate));
            let outcome = match (attempt, bound) {
                (Some(attempt), _) => Outcome::Planned(attempt.iteration_ms),
                (None, Some(bound)) => Outcome::Pruned(bound.ms),
                (None, None) => Outcome::TooNarrow(self.admitted_by(&candidate.strategy)),
            };
            Considered { strategy: candidate.strategy.clone(), outcome }
        };
        self.strategies.iter().zip(bounds).map(outcome).collect()
    }

    fn document(&self, batch: &Batch, chosen: Attempt, lower_bound: Bound, considered: Vec<Considered>) -> Plan {
        let Candidate { strategy, ranks } = chosen.candidate;
        let parts = strategy.schemes().iter().zip(ranks).zip(chosen.packings);
        let replicas = parts.filter_map(|((&scheme, ranks), packing)| {
            let cost = self.cost.scheme(scheme).ok()?;
            let tokens =
                |micro_batch: &Vec<usize>| cost.micro_batch_ms(micro_batch.iter().map(|&id| batch.tokens()[id]));
            let stage_mean = cost.stage_multipliers().iter().sum::<f64>() / count(scheme.stages());
            Some(ReplicaPlan {
                scheme,
                ranks: ranks.clone(),
                busy_ms: packing.micro_batches.iter().map(tokens).sum::<Millis>() * stage_mean,
                micro_batches: packing.micro_batches,
                cap_tokens: cost.cap(),
                predicted_ms: packing.ms,
            })
        });
        Plan {
            format: FORMAT.into(),
            profile: self.cost.profile().name.clone(),
            cluster: self.cost.cluster(),
            batch: batch.clone(),
            strategy: strategy.clone(),
            replicas: replicas.collect(),
            iteration_ms: chosen.iteration_ms,
            lower_bound,
            stop: chosen.stop,
            considered,
        }
    }

    fn admitted_by(&self, strategy: &Strategy) -> Tokens {
        let caps = strategy.schemes().iter().filter_map(|&scheme| self.cost.scheme(scheme).ok());
        caps.map(SchemeCost::cap).max().unwrap_or_default()
    }

    fn widest(&self) -> Option<&SchemeCost> {
        let schemes = self.strategies.iter().flat_map(|candidate| candidate.strategy.schemes());
        schemes.filter_map(|&scheme| self.cost.scheme(scheme).ok()).max_by_key(|cost| cost.cap())
    }

    fn too_long(&self, batch: &Batch) -> Error {
        let (sequence, tokens) = batch.longest();
        let subject = match &self.strategies[..] {
            [only] => format!("strategy {}", only.strategy),
            list => format!("any of the {} strategies", list.len()),
        };
        let on = self.widest().map(|cost| format!(" (on {})", cost.scheme())).unwrap_or_default();
        Error::SequenceTooLong { sequence, tokens, subject, limit: self.longest_admitted(), on }
    }
}

/// The best attempt: least time, and among those within [`TIE`] of it fewest GPU-seconds, then name order.
fn choose(attempts: Vec<Attempt>) -> Option<Attempt> {
    let least = attempts.iter().map(|attempt| attempt.iteration_ms).min()?;
    let equal = attempts.into_iter().filter(|attempt| attempt.iteration_ms <= least * (1.0 + TIE));
    equal.min_by(|one, other| {
        let names = || one.candidate.strategy.to_string().cmp(&other.candidate.strategy.to_string());
        one.gpu_ms.total_cmp(&other.gpu_ms).then_with(names)
    })
}
