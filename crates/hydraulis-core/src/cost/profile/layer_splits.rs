//! Schemes whose slow stages have fewer layers, from the entry of the split that was measured.
//!
//! A stage takes time in proportion to its layers, and the last one for its head too, which counts as the model's
//! [`LayerSplit`] says. Its activations are those of the entry, times its number of layers over the entry's where it has
//! more; its parameters and gradients those of the stage that grows most, because every rank's buffers have the size of the
//! largest stage. Embedding, head and fixed bytes then count too often, never too seldom. Its host memory is that of its copied layers, each
//! as large as the largest of the entry.

use crate::cost::PerStage;
use crate::cost::profile::{CostProfile, SchemeProfile};
use crate::error::Result;
use crate::spec::{LayerSplit, Scheme, StageSplit};
use crate::units::{count, whole};

impl CostProfile {
    /// The same profile, with splits of the layers for stages on slow ranks: `number` for each place of such stages, as
    /// [`LayerSplit::splits_for_slow_stages`] has them.
    ///
    /// Without its model a profile has none. The schemes are candidates on clusters whose ranks differ only.
    pub fn with_layer_splits(self, number: u32) -> Result<CostProfile> {
        self.on_each_device(|profile| profile.layer_splits_added(number))
    }

    fn layer_splits_added(mut self, number: u32) -> Result<CostProfile> {
        let Some(split) = self.model.as_ref().map(LayerSplit::of) else { return Ok(self) };
        let mut added = Vec::new();
        for entry in self.schemes.iter().filter(|entry| entry.scheme.split().is_by_cost()) {
            let usual = usual_layers(entry, &split)?;
            // A stated list of this number of stages is the usual split of the run.
            let stated = if entry.scheme.pp() > 1 { vec![usual.clone()] } else { Vec::new() };
            for scheme in split.clone().with_stated(stated)?.splits_for_slow_stages(entry.scheme, number)? {
                added.push(split_entry(entry, scheme, &usual, split.head_layers()));
            }
        }
        added.retain(|entry| self.schemes.iter().all(|known| known.scheme != entry.scheme));
        self.schemes.extend(added);
        self.checked()
    }

    /// The entry of a scheme with a split of its own; none without the entry of the usual split, or without the model.
    pub(super) fn layer_split_entry(&self, scheme: Scheme) -> Result<Option<SchemeProfile>> {
        let usual = scheme.with_split(StageSplit::BY_COST).filter(|&usual| usual != scheme);
        let entry = usual.and_then(|usual| self.scheme(usual).ok());
        let (Some(split), Some(entry)) = (self.model.as_ref().map(LayerSplit::of), entry) else { return Ok(None) };
        split.stage_layers(scheme)?;
        Ok(Some(split_entry(entry, scheme, &usual_layers(entry, &split)?, split.head_layers())))
    }
}

/// The layers of each stage as measured: those that the entry states, or else those of the model's split.
fn usual_layers(entry: &SchemeProfile, split: &LayerSplit) -> Result<Vec<u32>> {
    entry.stage_layers.clone().map_or_else(|| split.stage_layers(entry.scheme), Ok)
}

/// Bytes per token in host memory of each stage with these layers, from those of stages with the `usual` layers.
fn host_bytes(scheme: Scheme, bytes: &[f64], usual: &[u32], layers: &[u32]) -> Vec<f64> {
    let copied = |lengths: &[u32], stage: usize| {
        let first: u32 = lengths[..stage].iter().sum();
        let own = first..first + lengths[stage];
        f64::from(scheme.layer_plan().copied_in(own, stage == 0, stage + 1 == lengths.len()))
    };
    let in_flight = |stage: usize| count(layers.len() - stage);
    let of_layer = (0..usual.len()).map(|stage| bytes[stage] / (copied(usual, stage).max(1.0) * in_flight(stage)));
    let largest = of_layer.fold(0.0, f64::max);
    (0..layers.len()).map(|stage| largest * copied(layers, stage) * in_flight(stage)).collect()
}

/// The entry of a scheme that splits the layers otherwise than the `usual` stages of `entry`.
fn split_entry(entry: &SchemeProfile, scheme: Scheme, usual: &[u32], head_layers: f64) -> SchemeProfile {
    let layers = scheme.split().layers();
    let pairs: Vec<(f64, f64)> =
        layers.iter().copied().zip(usual.iter().copied()).map(|(own, usual)| (count(own), count(usual))).collect();
    let more: Vec<f64> = pairs.iter().map(|(own, usual)| (own / usual).max(1.0)).collect();
    let most = more.iter().copied().fold(1.0, f64::max);
    let head = |stage: usize| if stage + 1 == usual.len() { head_layers } else { 0.0 };
    let multiplier = |(stage, (own, usual)): (usize, &(f64, f64))| {
        let measured = entry.stage_multipliers.as_ref().map_or(1.0, |list| list[stage]);
        measured * (own + head(stage)) / (usual + head(stage))
    };
    // Every rank's buffers have the size of the largest stage.
    let larger = |&bytes: &u64| whole((count(bytes) * most).ceil());
    let resident_bytes = match &entry.resident_bytes {
        PerStage::Fullest(bytes) => PerStage::Fullest(larger(bytes)),
        PerStage::Each(list) => PerStage::Each(list.iter().map(larger).collect()),
    };
    let per_token = |figure: &PerStage<f64>| match figure {
        PerStage::Fullest(bytes) => PerStage::Fullest(bytes * most),
        PerStage::Each(list) => PerStage::Each(list.iter().zip(&more).map(|(bytes, more)| bytes * more).collect()),
    };
    SchemeProfile {
        scheme,
        resident_bytes,
        stage_optimizer_bytes: None,
        activation_bytes_per_token: per_token(&entry.activation_bytes_per_token),
        host_bytes_per_token: entry.host_bytes_per_token.as_ref().map(|figure| match figure {
            PerStage::Fullest(bytes) => PerStage::Fullest(bytes * most),
            PerStage::Each(bytes) => PerStage::Each(host_bytes(scheme, bytes, usual, &layers)),
        }),
        stage_multipliers: Some(pairs.iter().enumerate().map(multiplier).collect()),
        stage_layers: Some(layers),
        ..entry.clone()
    }
}
