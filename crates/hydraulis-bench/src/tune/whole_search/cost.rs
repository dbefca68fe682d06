//! The reference's cost formulas: time and memory of a layer, of embedding and head, and of a pipeline.
//!
//! They are those of Galvatron's `layer_cost.py`, `embedding_lmhead_cost.py` and `cost_model_handler.py`, restated. Times
//! are in seconds, memory in megabytes of 2^20 bytes.

use super::degrees::{LayerStrategy, Sharding};
use super::profile::{Collective, Outside, Profile, float};

/// Backward over forward time.
const BACKWARD: f64 = 2.0;
/// Copies of the parameters in 32 bits: parameters, gradients and two moments.
const STATES: f64 = 4.0;
/// A framework's own memory.
const CONTEXT_MB: f64 = 1024.0;
const MB: f64 = 1024.0 * 1024.0;
const S_PER_MS: f64 = 1e-3;

/// One model on one cluster, with the batch that a step trains.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs<'a> {
    pub(super) profile: &'a Profile,
    pub(super) setting: &'a Setting,
    pub(super) batch: u64,
    /// Micro-batches of a step.
    pub(super) chunks: u64,
}

/// The parts of a problem that its batch does not change.
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the reference's search")]
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) world: u64,
    pub(super) layers: usize,
    pub(super) hidden: u64,
    pub(super) length: u64,
    pub(super) memory_mb: u64,
    pub(super) shards_by_default: bool,
    /// Whether each gradient is reduced while the next micro-batch computes.
    pub(super) reduces_async: bool,
    pub(super) sequence_parallel: bool,
    /// Whether tensor groups gather into one buffer of the widest degree.
    pub(super) has_buffer: bool,
    pub(super) half_precision: bool,
    /// Whether stages hold all micro-batches of a step at once instead of one for each later stage.
    pub(super) is_gpipe: bool,
}

impl Setting {
    /// Megabytes of a device for everything: above 20 GB a fifth is the allocator's.
    pub(super) fn usable_mb(&self) -> u64 {
        let is_large = self.memory_mb / 1024 > 20;
        if is_large { self.memory_mb - self.memory_mb / 5 } else { self.memory_mb }
    }

    /// The factor of 16-bit messages and buffers.
    fn width(&self) -> f64 {
        if self.half_precision { 0.5 } else { 1.0 }
    }

    /// Megabytes of the hidden states of some samples.
    fn hidden_mb(&self, samples: f64) -> f64 {
        samples * (float(self.length) * float(self.hidden)) * 4.0 * self.width() / MB
    }
}

/// Seconds of a micro-batch without the reduction of gradients, and with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) alone: f64,
    pub(super) synced: f64,
}

impl Costs<'_> {
    /// Samples of a micro-batch on a rank; a search takes data degrees without a remainder, which the reference drops.
    fn samples(&self, dp: u64) -> u64 {
        self.batch / self.chunks / dp
    }

    /// A layer's times; none if the profile lacks a collective of this degree.
    pub(super) fn layer_times(&self, strategy: LayerStrategy) -> Option<Times> {
        let (profile, setting) = (self.profile, self.setting);
        let samples = float(self.samples(strategy.dp));
        let forward = profile.layer_ms.at(samples / float(strategy.split()));
        let again = if strategy.recomputes { forward } else { 0.0 };
        let backward = BACKWARD * forward + again;
        let shards = float(strategy.shards());
        let reduced_mb = 2.0 * (shards - 1.0) / shards * profile.parameter_mb / float(strategy.tp) * setting.width();
        let reduce = profile.reduce_ms_per_mb(strategy.shards(), strategy.tp == 1)?;
        let exchanges = self.exchanges_ms(strategy)?;
        let gathered = if strategy.sharding == Sharding::Zero3 { 0.5 * reduced_mb * reduce } else { 0.0 };
        let messages = match strategy.pp {
            1 => 0.0,
            pp => {
                let both_ways = float(2 * pp) * setting.hidden_mb(samples);
                both_ways * profile.message_ms_per_mb.get(&pp)? / float(setting.layers as u64)
            }
        };
        let time = |megabytes: f64| {
            let overlapped =
                if strategy.dp == 1 { backward } else { overlapped(megabytes, backward, reduce, profile.overlap) };
            S_PER_MS * (forward + overlapped + exchanges + gathered + messages)
        };
        Some(Times { alone: time(0.0), synced: time(reduced_mb) })
    }

    /// Milliseconds of a layer's tensor or sequence exchanges, which backward repeats if it recomputes.
    fn exchanges_ms(&self, strategy: LayerStrategy) -> Option<f64> {
        let (table, number) = match (strategy.tp, strategy.sp) {
            (1, 1) => return Some(0.0),
            (1, sp) => (self.profile.all_to_alls.get(&sp)?, 4.0),
            (tp, _) => (self.profile.gathers.get(&tp)?, 6.0),
        };
        let repeated = if strategy.recomputes { 1.5 } else { 1.0 };
        Some(number * repeated * self.exchange_ms(table, strategy.dp))
    }

    fn exchange_ms(&self, table: &Collective, dp: u64) -> f64 {
        table.ms(self.setting.hidden_mb(float(self.samples(dp))))
    }

    /// Megabytes of a layer on a stage; none if the profile lacks the degree.
    pub(super) fn layer_mb(&self, strategy: LayerStrategy, stage: u64) -> Option<f64> {
        let states = STATES * self.profile.parameter_mb / float(strategy.tp) * self.kept(strategy);
        let samples = float(self.in_flight(strategy.pp, stage) * self.samples(strategy.dp));
        let is_split = strategy.sp > 1 || self.setting.sequence_parallel;
        let activations = if strategy.recomputes {
            self.profile.input_mb / if is_split { float(strategy.split()) } else { 1.0 }
        } else {
            *self.profile.activation_mb.get(&strategy.split())?
        };
        Some(states + activations * samples)
    }

    /// Micro-batches that a stage holds at once.
    fn in_flight(&self, pp: u64, stage: u64) -> u64 {
        match (pp, self.setting.is_gpipe) {
            (1, _) => 1,
            (_, true) => self.chunks,
            (_, false) => pp - stage,
        }
    }

    /// The share of the model states that a rank keeps.
    fn kept(&self, strategy: LayerStrategy) -> f64 {
        let shard = 1.0 / float(strategy.shards()) + 0.003;
        // The shares that stay whole, and what gradients in 32 bits add.
        let (second, third, more) = match (self.chunks == 1, self.setting.reduces_async, self.setting.half_precision) {
            (true, _, true) => (1.0 / 8.0, 0.0, 1.0),
            (true, _, false) | (false, false, false) => (1.0 / 4.0, 0.0, 1.0),
            (false, true, true) => (2.0 / 8.0, 1.0 / 8.0, 1.0),
            (false, true, false) => (2.0 / 4.0, 1.0 / 4.0, 1.0),
            (false, false, true) => (1.0 / 8.0, 0.0, 5.0 / 4.0),
        };
        let all_sharded = if self.chunks > 1 && !self.setting.reduces_async { 5.0 / 4.0 } else { 1.0 };
        match strategy.sharding {
            Sharding::None => 1.0,
            Sharding::Zero2 => ((1.0 - second) * shard + second) * more,
            Sharding::Zero3 => ((1.0 - third) * shard + third) * all_sharded,
        }
    }

    /// Seconds of embedding and head on each stage, without the reduction of gradients.
    pub(super) fn outside_times(&self, strategy: LayerStrategy) -> Option<Vec<f64>> {
        let (profile, setting) = (self.profile, self.setting);
        let samples = float(self.samples(strategy.dp));
        let whole = profile.outside_ms.at(samples / float(strategy.split()));
        let shards = float(strategy.shards());
        let reduce = profile.reduce_ms_per_mb(strategy.shards(), strategy.tp == 1)? * (shards - 1.0) / shards;
        let exchange = match strategy.tp {
            1 => 0.0,
            tp => self.exchange_ms(profile.gathers.get(&tp)?, strategy.dp),
        };
        let part = |outside: &Outside, forward: f64, exchanges: f64| {
            let message = outside.states.get(&strategy.tp)? / STATES * setting.width() * reduce;
            let gathered = if strategy.sharding == Sharding::Zero3 { 0.5 * message } else { 0.0 };
            // Computation is slower during communication, communication is not.
            let beside = |computed: f64| gathered + ((computed - gathered / profile.overlap).max(0.0));
            Some(S_PER_MS * (beside(forward) + beside(BACKWARD * forward) + exchanges))
        };
        let [both, first, last] = &profile.outside;
        if strategy.pp == 1 {
            return Some(vec![part(both, whole, 2.0 * exchange)?]);
        }
        let mut stages = vec![0.0; usize::try_from(strategy.pp).ok()?];
        *stages.first_mut()? = part(first, whole / 2.0, exchange)?;
        *stages.last_mut()? = part(last, whole / 2.0, exchange)?;
        Some(stages)
    }

    /// Megabytes of embedding and head on each stage, with the framework's own.
    pub(super) fn outside_mb(&self, strategy: LayerStrategy) -> Option<Vec<f64>> {
        let samples = float(self.samples(strategy.dp));
        let kept = self.kept(strategy);
        let part = |outside: &Outside, stage: u64| {
            let held = float(self.in_flight(strategy.pp, stage)) * samples;
            let activations = outside.activation.get(&strategy.split())? * held;
            Some(CONTEXT_MB + outside.states.get(&strategy.tp)? * kept + activations)
        };
        let [both, first, last] = &self.profile.outside;
        if strategy.pp == 1 {
            return Some(vec![part(both, 0)?]);
        }
        let mut stages = vec![CONTEXT_MB; usize::try_from(strategy.pp).ok()?];
        *stages.first_mut()? = part(first, 0)?;
        *stages.last_mut()? = part(last, strategy.pp - 1)?;
        Some(stages)
    }

    /// Megabytes of the buffer that tensor groups gather into, on ranks of `pp` stages with tensor degrees up to `tp`.
    pub(super) fn buffer_mb(&self, pp: u64, tp: u64) -> f64 {
        if !(self.setting.sequence_parallel && self.setting.has_buffer) {
            return 0.0;
        }
        let samples = float(self.batch) / float(self.chunks) / float(self.setting.world / pp / tp);
        self.setting.hidden_mb(samples)
    }

    /// Seconds of a step, from each stage's layers with the reduction of gradients (`synced`) and each stage without it.
    ///
    /// The reference counts the first stage and the last for all micro-batches, and a middle stage for one.
    pub(super) fn step(&self, alone: &[f64], synced: &[f64]) -> f64 {
        let stages = float(alone.len() as u64);
        let chunks = float(self.chunks);
        let (first, last) = (alone[0], alone[alone.len() - 1]);
        let (sum, later): (f64, f64) = (alone.iter().sum(), alone[1..].iter().sum());
        let by_last = sum + last * (chunks - 1.0);
        let warm = (stages - 1.0).min(chunks - 1.0) * first;
        let by_first = warm.max(later) + first * (chunks + 1.0 - stages).max(0.0);
        let mut before = 0.0;
        let mut exposed: f64 = 0.0;
        for (alone, synced) in alone.iter().zip(synced) {
            before += alone;
            exposed = exposed.max(synced - before);
        }
        by_last.max(by_first) + exposed
    }
}

/// Milliseconds of a computation and a reduction of `megabytes` that slow each other while both run.
fn overlapped(megabytes: f64, computed: f64, reduce: f64, slowdown: f64) -> f64 {
    let (communicates, computes) = (megabytes * reduce * slowdown, computed * slowdown);
    if communicates > computes {
        computes + (megabytes - computes / (reduce * slowdown)) * reduce
    } else {
        communicates + (computed - communicates / slowdown)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::Value;

    use super::*;
    use crate::tune::whole_search::degrees::layer_strategies;
    use crate::tune::whole_search::profile::{Mode, Modes, Tables};

    pub(in super::super) fn document() -> Value {
        serde_json::from_str(include_str!("test_profile.json")).unwrap()
    }

    /// The reference's own profile, at 28 layers of 8,192 tokens on 8 ranks.
    pub(in super::super) fn profile(document: &Value) -> Profile {
        let hardware = &document["hardware"];
        let tables = Tables {
            time: &document["time_sequence"],
            memory: &document["memory_sequence_sp"],
            all_reduce: &hardware["allreduce"],
            messages: &hardware["p2p"],
            overlap: &hardware["overlap"],
            collectives: &hardware["sp"],
        };
        let fits = &document["derived_fit"];
        let modes = Modes { time: Mode::Sequence, memory: Mode::Sequence };
        Profile::read(tables, 8_192, 8, modes).unwrap().with_fits(fits, 8_192).unwrap()
    }

    pub(in super::super) fn setting() -> Setting {
        Setting {
            world: 8,
            layers: 28,
            hidden: 4_096,
            length: 8_192,
            memory_mb: 36 * 1_024,
            shards_by_default: true,
            reduces_async: false,
            sequence_parallel: true,
            has_buffer: true,
            half_precision: true,
            is_gpipe: false,
        }
    }

    /// Seconds of a step of 64 samples and megabytes of the first stage and the last if all layers have one strategy, as
    /// the reference's code gives them.
    #[test]
    fn a_strategy_costs_as_much_as_in_the_reference() {
        let document = document();
        let (profile, setting) = (profile(&document), setting());
        let expected: Vec<(u64, String, [f64; 3])> = serde_json::from_value(document["uniform_costs"].clone()).unwrap();
        assert!(expected.len() >= 12);
        for (chunks, name, expected) in expected {
            let costs = Costs { profile: &profile, setting: &setting, batch: 64, chunks };
            let pp: u64 = name[..1].parse().unwrap();
            let all = layer_strategies(8, pp, true);
            let strategy = *all.iter().find(|strategy| strategy.to_string() == name).unwrap();
            let outside = LayerStrategy { recomputes: false, ..strategy };
            let times = costs.layer_times(strategy).unwrap();
            let layers = float(28 / pp);
            let split: Vec<f64> =
                (0..pp).map(|stage| if stage + 1 == pp { 28.0 - layers * float(pp - 1) } else { layers }).collect();
            let alone: Vec<f64> =
                split.iter().zip(costs.outside_times(outside).unwrap()).map(|(n, own)| n * times.alone + own).collect();
            let synced: Vec<f64> = split.iter().map(|n| n * times.synced).collect();
            let memory: Vec<f64> = costs
                .outside_mb(outside)
                .unwrap()
                .into_iter()
                .zip(&split)
                .zip(0..)
                .map(|((own, n), stage)| own + n * costs.layer_mb(strategy, stage).unwrap())
                .collect();
            let found = [costs.step(&alone, &synced), memory[0], memory[memory.len() - 1]];
            for (found, expected) in found.into_iter().zip(expected) {
                assert!((found / expected - 1.0).abs() < 1e-9, "{name} at {chunks}: {found}, {expected}");
            }
        }
    }
}
