//! The memory of a rank by use, and the memory that a stage of a scheme takes on it.

use std::cmp::Reverse;
use std::ops::Add;

use crate::cost::profile::SchemeProfile;
use crate::cost::{CostProfile, PerStage, RankPool};
use crate::spec::{Cluster, shard_scheme};
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
    in_flight: u16,
}

impl StageMemory {
    /// The memory while the rank holds `tokens` tokens, of one micro-batch or of several.
    pub(crate) fn holding(&self, tokens: Tokens) -> RankMemory {
        let activations = tokens.as_f64() * self.per_token / f64::from(self.in_flight);
        RankMemory { activations, ..self.empty }
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
        let tokens = whole(free / (self.per_token * share));
        Tokens(tokens - tokens % profile.memory.token_multiple)
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
            in_flight: match entry.activation_bytes_per_token {
                PerStage::Fullest(_) => entry.scheme.pp(),
                PerStage::Each(_) => entry.scheme.in_flight(stage),
            },
        };
        (0..entry.scheme.pp()).map(of_stage)
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
}
