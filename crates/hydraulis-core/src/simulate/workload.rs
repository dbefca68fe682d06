//! The work of one replica under the conditions of a simulation.

use crate::cost::CostModel;
use crate::error::Result;
use crate::pipeline::StageTimes;
use crate::plan::{Plan, ReplicaPlan, predicted_times};
use crate::simulate::network::Crossings;
use crate::simulate::{Conditions, Network};
use crate::spec::Cluster;
use crate::timing::ReplicaWork;
use crate::units::{Millis, Tokens};

/// The micro-batches of one replica, their compute times and their travel times.
pub(super) struct ReplicaWorkload<'a> {
    /// The replica's plan.
    pub replica: &'a ReplicaPlan,
    /// The tokens of each micro-batch.
    pub tokens: Vec<Tokens>,
    /// Compute times of each stage, at the speed of its slowest rank.
    pub times: Vec<StageTimes>,
    /// Travel time of each micro-batch across each boundary of stages. Empty if hidden states arrive at once.
    pub travel: Vec<Vec<Millis>>,
    /// Time of each micro-batch on a stage with multiplier 1.
    base: Vec<Millis>,
    /// Multiplier of each stage, including the slowdown of its slowest rank.
    multipliers: Vec<f64>,
    forward_share: f64,
}

impl<'a> ReplicaWorkload<'a> {
    pub(super) fn new(
        plan: &Plan,
        cost: &CostModel,
        conditions: &Conditions,
        crossings: &Crossings,
        replica: &'a ReplicaPlan,
    ) -> Result<ReplicaWorkload<'a>> {
        let scheme = cost.replica(replica.scheme, &replica.ranks)?;
        let lengths = |ids: &Vec<usize>| ids.iter().map(|&id| plan.batch.tokens()[id]).collect::<Vec<_>>();
        let micro_batches: Vec<Vec<Tokens>> = replica.micro_batches.iter().map(lengths).collect();
        let tokens: Vec<Tokens> = micro_batches.iter().map(|lengths| lengths.iter().copied().sum()).collect();
        let factors: Vec<f64> = stages(replica).map(|ranks| slowdown(ranks, &plan.cluster, conditions)).collect();
        let mut times = predicted_times(plan, replica, cost)?;
        for (times, &factor) in times.iter_mut().zip(&factors) {
            for time in times.forward.iter_mut().chain(&mut times.backward) {
                *time = *time * factor;
            }
        }
        let travel = conditions.network.map(|network| travel(network, crossings, replica, &tokens));
        Ok(ReplicaWorkload {
            replica,
            times,
            travel: travel.unwrap_or_default(),
            base: micro_batches.iter().map(|lengths| scheme.micro_batch_ms(lengths.iter().copied())).collect(),
            multipliers: scheme.stage_multipliers().iter().zip(&factors).map(|(u, factor)| u * factor).collect(),
            forward_share: scheme.forward_share(),
            tokens,
        })
    }

    /// The replica's work, as the step timeline needs it.
    pub(super) fn work(&self) -> ReplicaWork<'_> {
        ReplicaWork {
            scheme: self.replica.scheme,
            times: &self.base,
            stage_multipliers: &self.multipliers,
            forward_share: self.forward_share,
        }
    }
}

/// The time of a stage on these ranks relative to the plan's, which knows their rates.
fn slowdown(ranks: &[u32], cluster: &Cluster, conditions: &Conditions) -> f64 {
    if cluster.is_uniform() {
        return conditions.slowdowns.of_stage(ranks);
    }
    let planned = ranks.iter().map(|&rank| 1.0 / cluster.rate(rank)).fold(0.0, f64::max);
    let now = ranks.iter().map(|&rank| conditions.slowdowns.of(rank) / cluster.rate(rank)).fold(0.0, f64::max);
    now / planned
}

/// The ranks of each stage.
pub(super) fn stages(replica: &ReplicaPlan) -> impl Iterator<Item = &[u32]> {
    replica.ranks.chunks(replica.ranks.len() / replica.scheme.stages())
}

/// The ranks on both sides of each boundary between stages.
pub(super) fn boundaries(replica: &ReplicaPlan) -> impl Iterator<Item = (&[u32], &[u32])> {
    stages(replica).zip(stages(replica).skip(1))
}

fn travel(network: Network, crossings: &Crossings, replica: &ReplicaPlan, tokens: &[Tokens]) -> Vec<Vec<Millis>> {
    let boundary = |(from, to)| tokens.iter().map(|&tokens| network.travel_ms(crossings, tokens, from, to)).collect();
    boundaries(replica).map(boundary).collect()
}
