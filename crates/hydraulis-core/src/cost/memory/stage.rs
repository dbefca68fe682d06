//! The memory of a rank by use, and the memory that a stage of a scheme takes on it.

use std::cmp::Reverse;
use std::ops::Add;

use crate::cost::profile::SchemeProfile;
use crate::cost::{CostProfile, PerStage, RankPool};
use crate::spec::{Cluster, LayerSplit, shard_scheme};
use crate::units::{Tokens, count, whole};

/// Bytes of a rank, by use.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RankMemory {
    /// Margin and transfer buffers.
    pub reserved: f64,
    /// The rank's optimizer shard: master parameters, their gradients and moments.
    pub optimizer: f64,
    /// Parameters and gradients of the rank's stage, and the head's gradient between the loss and its backward.
    pub resident: f64,
    /// Activations of the micro-batches in flight.
    pub activations: f64,
}

impl RankMemory {
    /// Sum of all uses.
    pub fn total(&self) -> f64 {
        [self.reserved, self.optimizer, self.resident, self.activations].into_iter().fold(0.0, Add::add)
    }
}

/// Bytes of a rank of one stage: before its first token, and per token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StageMemory {
    /// Memory without activations.
    pub(crate) empty: RankMemory,
    /// Bytes per token of a micro-batch, while the rank holds `in_flight` such micro-batches.
    per_token: f64,
    /// Bytes of host memory for the same tokens; 0 if no layer offloads.
    host_per_token: f64,
    in_flight: u16,
    /// The part of `per_token` for layers that offload, of which the device holds those of one micro-batch however many
    /// are in flight.
    passing: f64,
}

impl StageMemory {
    /// The memory while the rank holds `tokens` tokens, of one micro-batch or of several, of which the largest has
    /// `largest`; absent for equal ones.
    pub(crate) fn holding(&self, tokens: Tokens, largest: Option<Tokens>) -> RankMemory {
        let equal = tokens.as_f64() / f64::from(self.in_flight);
        let passing = self.passing * (largest.map_or(equal, |largest| largest.min(tokens).as_f64()) - equal);
        RankMemory { activations: equal * self.per_token + passing, ..self.empty }
    }

    /// Most tokens of each micro-batch in flight.
    pub(crate) fn cap(&self, profile: &CostProfile, pool: RankPool) -> Tokens {
        self.cap_among(profile, pool, self.in_flight)
    }

    /// Most tokens of each of `micro_batches` resident at once.
    pub(crate) fn cap_among(&self, profile: &CostProfile, pool: RankPool, micro_batches: u16) -> Tokens {
        let free = count(pool.memory_bytes) - self.empty.total();
        // Exactly 1 for the number in flight.
        let share = f64::from(micro_batches) / f64::from(self.in_flight);
        let tokens = whole((free / (self.per_token * share)).min(self.host_tokens(profile) / share));
        Tokens(tokens - tokens % profile.memory.token_multiple)
    }
}

impl StageMemory {
    /// Most tokens of each micro-batch in flight whose activations fit into a rank's part of host memory.
    fn host_tokens(&self, profile: &CostProfile) -> f64 {
        match profile.hardware.host_memory_bytes {
            Some(bytes) if self.host_per_token > 0.0 => count(bytes) / self.host_per_token,
            _ => f64::INFINITY,
        }
    }
}

impl CostProfile {
    /// A scheme's stages on a cluster.
    ///
    /// A single figure of bytes per token is the fullest stage's, which has `pp` micro-batches in flight.
    pub(crate) fn stage_memory(&self, entry: &SchemeProfile, cluster: &Cluster) -> impl Iterator<Item = StageMemory> {
        let optimizer = self.optimizer_of_ranks(entry, cluster);
        let of_stage = move |stage: u16| StageMemory {
            empty: RankMemory {
                reserved: count(self.memory.reserved_bytes),
                optimizer: optimizer[usize::from(stage)],
                resident: count(entry.resident_bytes.of(stage.into())),
                activations: 0.0,
            },
            per_token: entry.activation_bytes_per_token.of(stage.into()),
            passing: self.passing_bytes(entry, stage),
            host_per_token: entry.host_bytes_per_token.as_ref().map_or(0.0, |host| host.of(stage.into())),
            in_flight: match entry.activation_bytes_per_token {
                PerStage::Fullest(_) => entry.scheme.pp(),
                PerStage::Each(_) => entry.scheme.in_flight(stage),
            },
        };
        (0..entry.scheme.pp()).map(of_stage)
    }

    /// Bytes per token of the layers that offload and are on the device at once, two or a single one; 0 if the profile
    /// does not state its model.
    fn passing_bytes(&self, entry: &SchemeProfile, stage: u16) -> f64 {
        let (Some(host), Some(model)) = (&entry.host_bytes_per_token, &self.model) else { return 0.0 };
        let (plan, in_flight) = (entry.scheme.layer_plan(), f64::from(entry.scheme.in_flight(stage)));
        let stated = entry.stage_layers.clone().map(Ok);
        let Ok(lengths) = stated.unwrap_or_else(|| LayerSplit::of(model).stage_layers(entry.scheme)) else {
            return 0.0;
        };
        let first: u32 = lengths[..usize::from(stage)].iter().sum();
        let layers = first..first + lengths[usize::from(stage)];
        let (is_first, is_last) = (stage == 0, stage + 1 == entry.scheme.pp());
        let copied = plan.copied_in(layers.clone(), is_first, is_last).max(1);
        let offloading = plan.offloading_in(layers, is_first);
        host.of(stage.into()) / (f64::from(copied) * in_flight) * (f64::from(offloading) * in_flight).min(2.0)
    }

    /// The optimizer state of a rank of each stage: its share of the stage's state if all owners hold their elements,
    /// otherwise of the whole state.
    fn optimizer_of_ranks(&self, entry: &SchemeProfile, cluster: &Cluster) -> Vec<f64> {
        let (stages, gpus) = (entry.scheme.stages(), f64::from(cluster.gpus()));
        match &entry.stage_optimizer_bytes {
            Some(bytes) if shard_scheme(&self.every_scheme(), cluster).is_some() => {
                bytes.iter().map(|&bytes| count(bytes) * count(stages) / gpus).collect()
            }
            _ => vec![count(self.memory.optimizer_bytes) / gpus; stages],
        }
    }

    /// The stage that admits the fewest tokens on its own ranks; among stages that admit none, the one that lacks most.
    pub(crate) fn fullest_stage(&self, entry: &SchemeProfile, cluster: &Cluster, pools: &[RankPool]) -> FullestStage {
        let stages = self.stage_memory(entry, cluster).zip(pools).map(|(stage, &pool)| FullestStage {
            cap: stage.cap(self, pool),
            empty_bytes: whole(stage.empty.total()),
            memory_bytes: pool.memory_bytes,
            lacking_host_bytes: (stage.empty.total() < count(pool.memory_bytes)
                && stage.host_tokens(self) < count(self.memory.token_multiple))
            .then(|| whole((stage.host_per_token * count(self.memory.token_multiple)).ceil())),
        });
        let lacks = |stage: &FullestStage| stage.empty_bytes.saturating_sub(stage.memory_bytes);
        let fullest = stages.min_by_key(|stage| (stage.cap, Reverse(lacks(stage)), Reverse(stage.empty_bytes)));
        fullest.expect("a scheme has at least one stage")
    }
}

/// The stage of a replica whose ranks limit its micro-batches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FullestStage {
    /// Most tokens of each micro-batch.
    pub(crate) cap: Tokens,
    /// Bytes of its ranks before the first token.
    pub(crate) empty_bytes: u64,
    /// Memory of its ranks, in bytes.
    pub(crate) memory_bytes: u64,
    /// Bytes of host memory for the smallest micro-batch, where host memory alone leaves no room for it.
    pub(crate) lacking_host_bytes: Option<u64>,
}
