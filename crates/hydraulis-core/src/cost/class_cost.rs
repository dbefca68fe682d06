//! The cost of replicas of one class: times, their reliability, and the token limits of micro-batches.

use serde::{Deserialize, Serialize};

use crate::batch::Batch;
use crate::cost::memory::StageMemory;
use crate::cost::profile::{FitQuality, SchemeProfile};
use crate::cost::{CostProfile, InFlightLimit, RankPool, ReplicaClass};
use crate::spec::{Cluster, ContextKind, MemoryRule, Scheme};
use crate::units::{Millis, Tokens};

/// The cost of replicas of one class.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassCost {
    class: ReplicaClass,
    context: Option<ContextKind>,
    micro_batch: MicroBatchCost,
    cap: Tokens,
    in_flight_limit: InFlightLimit,
    forward_share: f64,
    stage_multipliers: Vec<f64>,
    /// Whether each stage is known to hold `p` caps at once.
    limits_in_flight: bool,
    fit: Option<FitQuality>,
}

impl ClassCost {
    pub(super) fn new(
        profile: &CostProfile,
        entry: &SchemeProfile,
        cluster: &Cluster,
        class: ReplicaClass,
    ) -> ClassCost {
        // The coefficients are those of the slowest stage's ranks, so that replicas that differ in speed alone have
        // equal multipliers and share their tables of capacities.
        let slowest = class.slowest();
        let (of_device, rate) = profile.of_device(slowest.device);
        let timed = of_device.scheme(entry.scheme).unwrap_or(entry);
        let measured = timed.stage_multipliers.clone().unwrap_or_else(|| vec![1.0; entry.scheme.stages()]);
        let multipliers = measured.iter().zip(&class.stages).map(|(own, pool)| own * (slowest.speed / pool.speed));
        let cap = profile.fullest_stage(entry, cluster, &class.stages).cap;
        ClassCost {
            context: timed.context,
            micro_batch: timed.micro_batch_cost().at_speed(slowest.speed / rate),
            cap,
            in_flight_limit: InFlightLimit { micro_batches: 1, tokens: cap },
            forward_share: timed.forward_share,
            stage_multipliers: multipliers.collect(),
            limits_in_flight: limits_in_flight(profile, entry, cluster, &class.stages, cap),
            fit: timed.fit,
            class,
        }
    }

    /// The cost of a class that bounds every class of at most its memory.
    ///
    /// A class of less memory can have an in-flight limit where this one has a cap alone: a full stage of `p` caps needs
    /// more memory than one of `p` smaller caps. So this class has the limit wherever a class may have it.
    pub(super) fn exceeding(
        profile: &CostProfile,
        entry: &SchemeProfile,
        cluster: &Cluster,
        class: ReplicaClass,
    ) -> ClassCost {
        let cost = ClassCost::new(profile, entry, cluster, class);
        let limits_in_flight = cost.limits_in_flight || (cluster.differs_in_memory() && may_limit_in_flight(entry));
        ClassCost { limits_in_flight, ..cost }
    }

    /// The class.
    pub fn class(&self) -> &ReplicaClass {
        &self.class
    }

    /// The class's scheme.
    pub fn scheme(&self) -> Scheme {
        self.class.scheme
    }

    /// The kind of context parallelism of these costs; none if cp is 1.
    pub fn context(&self) -> Option<ContextKind> {
        self.context
    }

    pub(super) fn with_memory(self, memory: MemoryRule) -> ClassCost {
        let micro_batches =
            if memory == MemoryRule::InFlight && self.limits_in_flight { self.scheme().stages() } else { 1 };
        let tokens = Tokens(self.cap.0.saturating_mul(micro_batches as u64));
        ClassCost { in_flight_limit: InFlightLimit { micro_batches, tokens }, ..self }
    }

    /// Most tokens of each micro-batch if all hold the same number; 0 if not even the weights fit.
    pub fn cap(&self) -> Tokens {
        self.cap
    }

    /// The in-flight limit of consecutive micro-batches.
    pub fn in_flight_limit(&self) -> InFlightLimit {
        self.in_flight_limit
    }

    /// The longest sequence that fits into a micro-batch: the cap, or with the in-flight limit all its tokens.
    pub fn longest(&self) -> Tokens {
        self.in_flight_limit.tokens
    }

    /// Whether a sequence of `tokens` fits into a micro-batch.
    pub fn admits(&self, tokens: Tokens) -> bool {
        tokens <= self.longest()
    }

    /// The time that one sequence adds to its micro-batch: `a s^2 + b s`.
    pub fn sequence_ms(&self, tokens: Tokens) -> Millis {
        self.micro_batch.sequence_ms(tokens)
    }

    /// Milliseconds per token: `b`.
    pub fn linear_ms_per_token(&self) -> f64 {
        self.micro_batch.linear_ms_per_token
    }

    /// Milliseconds per squared token of a sequence: `a`.
    pub fn quadratic_ms_per_token2(&self) -> f64 {
        self.micro_batch.quadratic_ms_per_token2
    }

    /// Time of every micro-batch in addition to its sequences: `c`.
    pub fn fixed_ms(&self) -> Millis {
        self.micro_batch.fixed
    }

    /// The least time of every micro-batch: `d`.
    pub fn least_ms(&self) -> Millis {
        self.micro_batch.least
    }

    /// Whether short micro-batches take longer than their sequences and `c`.
    pub fn has_least(&self) -> bool {
        self.least_ms() > self.fixed_ms()
    }

    /// The time of a micro-batch: `c` and the sum over its sequences, or `d` if that is longer.
    pub fn micro_batch_ms(&self, sequences: impl Iterator<Item = Tokens>) -> Millis {
        self.micro_batch.micro_batch_ms(sequences)
    }

    /// The times of micro-batches, each with the ids of its sequences in the batch.
    pub fn micro_batch_times(&self, micro_batches: &[Vec<usize>], batch: &Batch) -> Vec<Millis> {
        let time = |ids: &Vec<usize>| self.micro_batch_ms(ids.iter().map(|&id| batch.tokens()[id]));
        micro_batches.iter().map(time).collect()
    }

    /// The time of a micro-batch whose sequences add `work`.
    pub fn ms_of_work(&self, work: Millis) -> Millis {
        self.micro_batch.ms_of_work(work)
    }

    /// The forward pass's share of a micro-batch's time.
    pub fn forward_share(&self) -> f64 {
        self.forward_share
    }

    /// The prediction error and the extrapolation of micro-batches with these longest sequences and tokens; none if the
    /// profile does not state its error.
    pub fn reliability(&self, micro_batches: impl Iterator<Item = (Tokens, Tokens)>) -> Option<Reliability> {
        let fit = self.fit?;
        let factor = micro_batches.map(|(longest, tokens)| fit.range.beyond(longest, tokens)).fold(1.0, f64::max);
        Some(Reliability { error: fit.error(), factor })
    }

    /// Time of each stage relative to the coefficients, which are those of the ranks of its slowest stage.
    pub fn stage_multipliers(&self) -> &[f64] {
        &self.stage_multipliers
    }

    /// The greatest stage multiplier.
    pub fn slowest_multiplier(&self) -> f64 {
        self.stage_multipliers.iter().copied().fold(0.0, f64::max)
    }
}

/// Whether each stage is known to hold `p` caps at once, of one micro-batch or of several.
fn limits_in_flight(
    profile: &CostProfile,
    entry: &SchemeProfile,
    cluster: &Cluster,
    pools: &[RankPool],
    cap: Tokens,
) -> bool {
    let holds = |(stage, &pool): (StageMemory, &RankPool)| stage.cap_among(profile, pool, entry.scheme.pp()) >= cap;
    may_limit_in_flight(entry) && profile.stage_memory(entry, cluster).zip(pools).all(holds)
}

/// Whether it is known how many tokens each stage holds, so that ranks of enough memory can hold `p` caps at once.
///
/// If a profile has the fullest stage's figures alone, this holds if all stages are alike: they take as long, and have
/// as many layers if the profile states them. It never holds if backward recomputes activations: a layer then holds
/// those of the whole micro-batch, which no figure counts and which are `p` times as many for a micro-batch of `p`
/// caps.
fn may_limit_in_flight(entry: &SchemeProfile) -> bool {
    let same_times =
        entry.stage_multipliers.iter().all(|list| list.windows(2).all(|pair| pair[0].total_cmp(&pair[1]).is_eq()));
    let same_layers = entry.stage_layers.iter().all(|list| list.windows(2).all(|pair| pair[0] == pair[1]));
    let are_known = entry.activation_bytes_per_token.is_known() || (same_times && same_layers);
    are_known && entry.scheme.layer_plan().keeps_activations()
}

/// A measured profile's statement on its own predictions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reliability {
    /// The expected relative error of a micro-batch like the measured ones.
    pub error: f64,
    /// Extrapolation factor beyond the measurements, by sequence or by tokens; 1 within them.
    pub factor: f64,
}

/// The coefficients of a micro-batch's time: `c` and the sum over its sequences of `a s^2 + b s`, and at least `d`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MicroBatchCost {
    /// Milliseconds per squared token of a sequence: `a`.
    pub(crate) quadratic_ms_per_token2: f64,
    /// Milliseconds per token: `b`.
    pub(crate) linear_ms_per_token: f64,
    /// Time of every micro-batch in addition to its sequences: `c`.
    pub(crate) fixed: Millis,
    /// Least time of every micro-batch: `d`.
    pub(crate) least: Millis,
}

impl MicroBatchCost {
    /// The times on ranks of this speed, relative to the measured ranks.
    pub(crate) fn at_speed(self, speed: f64) -> MicroBatchCost {
        MicroBatchCost {
            quadratic_ms_per_token2: self.quadratic_ms_per_token2 / speed,
            linear_ms_per_token: self.linear_ms_per_token / speed,
            fixed: Millis(self.fixed.0 / speed),
            least: Millis(self.least.0 / speed),
        }
    }

    /// The time that one sequence adds.
    pub(crate) fn sequence_ms(&self, tokens: Tokens) -> Millis {
        let tokens = tokens.as_f64();
        Millis((self.quadratic_ms_per_token2 * tokens + self.linear_ms_per_token) * tokens)
    }

    /// The time of a micro-batch of these sequences.
    pub(crate) fn micro_batch_ms(&self, sequences: impl Iterator<Item = Tokens>) -> Millis {
        self.ms_of_work(sequences.map(|tokens| self.sequence_ms(tokens)).sum())
    }

    /// The time of a micro-batch whose sequences add `work`.
    pub(crate) fn ms_of_work(&self, work: Millis) -> Millis {
        (work + self.fixed).max(self.least)
    }
}
