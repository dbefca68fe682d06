//! Schemes between two kinds of checkpointing, from a profile of both.
//!
//! A stage with the share `s` of its layers under a second kind takes `(1 - s)` of its time under the first kind and `s`
//! of its time under the second: embedding, head and messages are the same in both. Its saved bytes are such a mean as
//! well. The bytes that a backward recomputes are those of one layer of one micro-batch, so they count whole as soon as
//! the stage has a layer of the kind.
//!
//! Layers of the second kind `offload` compute like those of `none`, and their copies overlap the whole stage
//! ([`HostCopies`]), where the profile states the rate of the link to host memory. Without a rate the copies are part of
//! the computation, so that times are means of both kinds. The device holds the activations of two such layers.

use std::ops::Range;

use crate::cost::host_copies::HostCopies;
use crate::cost::profile::{CostProfile, FitQuality, SchemeProfile};
use crate::cost::{MeasuredRange, PerStage};
use crate::error::Result;
use crate::spec::{CheckpointingKind, LayerPlan, LayerSplit, Scheme};
use crate::units::{count, whole};

impl CostProfile {
    /// The same profile, with `between` layer plans between each two successive kinds of checkpointing that it has of the
    /// same degrees, and between each of them and `offload`. Their saved bytes fall by about equal factors from the one
    /// kind to the other. Plans with `full-offload` are not among them: its layers
    /// take the time of `full`.
    ///
    /// Degrees have none if the profile does not name its model, or has no entry without checkpointing, or states the
    /// bytes of the fullest of several stages alone. In stages of equal length the plans have equal numbers of layers of
    /// each kind.
    pub fn with_layer_plans(self, between: u16) -> Result<CostProfile> {
        self.on_each_device(|profile| profile.layer_plans_added(between))
    }

    fn layer_plans_added(mut self, between: u16) -> Result<CostProfile> {
        let Some(split) = self.model.as_ref().map(LayerSplit::of) else { return Ok(self) };
        let mut added = Vec::new();
        for keeping in self.schemes.iter().filter(|entry| entry.scheme.layer_plan().keeps_activations()) {
            let stages = Stages::of(keeping, &split)?;
            let of_kind = |kind: CheckpointingKind| self.scheme(keeping.scheme.with_checkpointing(kind)).ok();
            let kinds: Vec<&SchemeProfile> = CheckpointingKind::ON_DEVICE.into_iter().filter_map(of_kind).collect();
            let offload = of_kind(CheckpointingKind::Offload);
            let with_offload = offload.iter().flat_map(|other| kinds.iter().map(|usual| [*usual, *other]));
            for [usual, other] in kinds.windows(2).map(|pair| [pair[0], pair[1]]).chain(with_offload) {
                added.extend(Mixture { profile: &self, keeping, usual, other, stages: &stages }.entries(between));
            }
        }
        added.retain(|entry| self.schemes.iter().all(|known| known.scheme != entry.scheme));
        self.schemes.extend(added);
        self.checked()
    }

    /// The entry of a plan of two kinds of checkpointing; none unless the profile has both of the same degrees, and none
    /// without checkpointing, with `full-offload`, or if the plan is for another number of layers.
    pub(super) fn layer_plan_entry(&self, scheme: Scheme) -> Result<Option<SchemeProfile>> {
        let plan = scheme.layer_plan();
        let of_kind = |kind: CheckpointingKind| self.scheme(scheme.with_checkpointing(kind)).ok();
        let [usual, other] = plan.kinds().map(|kind| of_kind(kind).filter(|_| kind != CheckpointingKind::FullOffload));
        let (Some(model), Some(keeping), Some(usual), Some(other)) =
            (&self.model, of_kind(CheckpointingKind::None), usual, other)
        else {
            return Ok(None);
        };
        let stages = Stages::of(keeping, &LayerSplit::of(model))?;
        let mixture = Mixture { profile: self, keeping, usual, other, stages: &stages };
        let is_for_model = plan.layers().is_some_and(|layers| u32::from(layers) == stages.total());
        let number = plan.number_in(0..stages.total());
        Ok(Some(number).filter(|_| is_for_model && mixture.saves_bytes()).and_then(|number| mixture.entry(number)))
    }
}

/// The layers of each stage of a scheme.
struct Stages {
    layers: Vec<Range<u32>>,
}

impl Stages {
    /// The stages that the entry states, or else those of the model's split.
    fn of(entry: &SchemeProfile, split: &LayerSplit) -> Result<Stages> {
        let lengths = match &entry.stage_layers {
            Some(lengths) => lengths.clone(),
            None => split.stage_layers(entry.scheme)?,
        };
        let mut start = 0;
        let layers = lengths.into_iter().map(|length| {
            let first = start;
            start += length;
            first..start
        });
        Ok(Stages { layers: layers.collect() })
    }

    fn total(&self) -> u32 {
        self.layers.last().map_or(0, |last| last.end)
    }

    /// The least number of layers that every stage takes an equal part of; one if stages differ in length.
    fn step(&self) -> u32 {
        let first = self.layers[0].len();
        let are_alike = self.layers.iter().all(|layers| layers.len() == first);
        if are_alike { u32::try_from(self.layers.len()).unwrap_or(1) } else { 1 }
    }
}

/// The entries of the same degrees that a mixture lies between.
struct Mixture<'a> {
    profile: &'a CostProfile,
    /// The entry without checkpointing.
    keeping: &'a SchemeProfile,
    usual: &'a SchemeProfile,
    other: &'a SchemeProfile,
    stages: &'a Stages,
}

impl Mixture<'_> {
    /// An entry for each plan between the two kinds, in ascending order of recomputation.
    fn entries(&self, between: u16) -> Vec<SchemeProfile> {
        if !self.saves_bytes() {
            return Vec::new();
        }
        let (more, less) = self.bytes_of_kinds();
        let (step, total) = (self.stages.step(), self.stages.total());
        let number = |place: u16| {
            let aimed = more * (less / more).powf(f64::from(place) / (f64::from(between) + 1.0));
            let steps = whole((more - aimed) / (more - less) * f64::from(total / step) + 0.5);
            u32::try_from(steps).unwrap_or(u32::MAX).clamp(1, (total / step).saturating_sub(1).max(1)) * step
        };
        let mut numbers: Vec<u32> = (1..=between).map(number).collect();
        numbers.extend(self.covered().map(|number| number / step * step).filter(|_| between > 0));
        numbers.retain(|&number| 0 < number && number < total);
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().filter_map(|number| self.entry(number)).collect()
    }

    /// Bytes of the first stage under the first and the second kind.
    fn bytes_of_kinds(&self) -> (f64, f64) {
        let bytes = |entry: &SchemeProfile| entry.activation_bytes_per_token.of(0);
        (bytes(self.usual), bytes(self.other))
    }

    /// Whether the bytes of every stage are known, and the second kind has fewer.
    fn saves_bytes(&self) -> bool {
        let figures = [self.keeping, self.usual, self.other].map(|entry| &entry.activation_bytes_per_token);
        let are_known = self.stages.layers.len() == 1 || figures.iter().all(|figure| figure.is_known());
        let (more, less) = self.bytes_of_kinds();
        are_known && less < more && self.usual.context == self.other.context
    }

    /// Most layers whose copies the shorter pass of the shortest sequences covers; none without copies of a known rate.
    fn covered(&self) -> Option<u32> {
        let copy_ms = self.copies(self.other, LayerPlan::uniform(CheckpointingKind::Offload))?.ms_per_token;
        let shorter = self.keeping.forward_share.min(1.0 - self.keeping.forward_share);
        let layers = shorter * self.keeping.linear_ms_per_token / copy_ms * f64::from(self.stages.total());
        Some(u32::try_from(whole(layers)).unwrap_or(u32::MAX))
    }

    /// The copies of an entry of this plan that overlap its computation; none if the profile states no rate, or no layer
    /// copies.
    fn copies(&self, entry: &SchemeProfile, plan: LayerPlan) -> Option<HostCopies> {
        let rate = self.profile.hardware.host_gigabytes_per_s.filter(|_| self.is_offloading())?;
        let copied: Vec<u32> = (0..self.stages.layers.len()).map(|stage| self.copied(plan, stage)).collect();
        Some(HostCopies::of(entry, &copied, rate))
    }

    /// Number of layers of a stage that are copied.
    fn copied(&self, plan: LayerPlan, stage: usize) -> u32 {
        plan.copied_in(self.stages.layers[stage].clone(), stage == 0, stage + 1 == self.stages.layers.len())
    }

    fn is_offloading(&self) -> bool {
        self.other.scheme.layer_plan().offloads()
    }

    /// The entry with the second kind's times of computation.
    fn computed(&self) -> &SchemeProfile {
        let overlaps = self.is_offloading() && self.profile.hardware.host_gigabytes_per_s.is_some();
        if overlaps { self.keeping } else { self.other }
    }

    /// The entry of the plan with `number` layers of the second kind.
    fn entry(&self, number: u32) -> Option<SchemeProfile> {
        let kinds = [self.usual, self.other].map(|entry| entry.scheme.layer_plan().kinds()[0]);
        let layers = u16::try_from(self.stages.total()).ok()?;
        let plan = LayerPlan::mixed(kinds, u16::try_from(number).ok()?, layers)?;
        let mean = |share: f64, part: fn(&SchemeProfile) -> f64| {
            let (usual, other) = (part(self.usual), part(self.computed()));
            usual + share * (other - usual)
        };
        let forward = |entry: &SchemeProfile| entry.forward_share * one_token_ms(entry);
        let computed = SchemeProfile {
            scheme: self.keeping.scheme.with_layers(plan),
            quadratic_ms_per_token2: mean(plan.share(), |entry| entry.quadratic_ms_per_token2),
            linear_ms_per_token: mean(plan.share(), |entry| entry.linear_ms_per_token),
            fixed_ms: mean(plan.share(), |entry| entry.fixed_ms),
            least_ms: mean(plan.share(), |entry| entry.least_ms),
            forward_share: mean(plan.share(), forward) / mean(plan.share(), one_token_ms),
            activation_bytes_per_token: if self.is_offloading() { self.passing_bytes(plan)? } else { self.bytes(plan) },
            host_bytes_per_token: self.host_bytes(plan),
            stage_multipliers: self.multipliers(plan),
            fit: self.fit(),
            ..self.usual.clone()
        };
        Some(match self.copies(&computed, plan) {
            Some(copies) => {
                let CostProfile { hardware, memory, .. } = self.profile;
                let longest = computed.longest_tokens(hardware.memory_bytes, memory.reserved_bytes);
                copies.added_to(computed, longest)
            }
            None => computed,
        })
    }

    /// Bytes in host memory: of each stage those of its copied layers.
    fn host_bytes(&self, plan: LayerPlan) -> Option<PerStage<f64>> {
        let of_all = self.other.host_bytes_per_token.as_ref()?;
        let all = LayerPlan::uniform(CheckpointingKind::Offload);
        let of_layer = |stage| of_all.of(stage) / f64::from(self.copied(all, stage).max(1));
        let of_stage = |stage| of_layer(stage) * f64::from(self.copied(plan, stage));
        Some(PerStage::each((0..self.stages.layers.len()).map(of_stage).collect()))
    }

    /// Bytes on the device where the second kind offloads: the layers of the first kind, two layers that pass, and the
    /// input of a later stage whose first layer offloads.
    fn passing_bytes(&self, plan: LayerPlan) -> Option<PerStage<f64>> {
        let (host, all) = (self.other.host_bytes_per_token.as_ref()?, LayerPlan::uniform(CheckpointingKind::Offload));
        let model = self.profile.model.as_ref()?;
        let scheme = self.keeping.scheme;
        let hidden = model.fields().hidden_size * self.profile.travelling_dtype().bytes();
        let of_stage = |(stage, share): (usize, f64)| {
            let range = &self.stages.layers[stage];
            let in_flight = f64::from(scheme.in_flight(u16::try_from(stage).unwrap_or(u16::MAX)));
            let layers = in_flight * count(range.len());
            let bytes = |entry: &SchemeProfile| entry.activation_bytes_per_token.of(stage);
            let copied = self.copied(all, stage);
            if copied == 0 {
                // The stage's only layer stays on the device whichever of the two it is.
                return if share > 0.0 { bytes(self.keeping) } else { bytes(self.usual) };
            }
            let layer = host.of(stage) / f64::from(copied);
            // What no layer saves is in each kind's figure.
            let others = bytes(self.keeping) - layer * count(range.len());
            let again = (bytes(self.keeping) - bytes(self.usual)).max(0.0) / (layers - 1.0).max(1.0);
            let saved = (bytes(self.usual) - again - others) * (1.0 - share);
            let passing =
                (f64::from(plan.offloading_in(range.clone(), stage == 0)) * in_flight).min(2.0) * layer / in_flight;
            let is_received = stage > 0 && plan.offloads_first(range);
            let input = if is_received { in_flight * count(hidden) / count(scheme.stage_group_ranks()) } else { 0.0 };
            others + saved + passing + input + if share < 1.0 { again } else { 0.0 }
        };
        Some(PerStage::each(self.shares(plan).enumerate().map(of_stage).collect()))
    }

    /// The share of each stage's layers under the second kind.
    fn shares(&self, plan: LayerPlan) -> impl Iterator<Item = f64> {
        self.stages.layers.iter().map(move |layers| count(plan.number_in(layers.clone())) / count(layers.len()))
    }

    fn bytes(&self, plan: LayerPlan) -> PerStage<f64> {
        let of_stage = |(stage, share): (usize, f64)| {
            let in_flight = f64::from(self.keeping.scheme.in_flight(u16::try_from(stage).unwrap_or(u16::MAX)));
            let layers = in_flight * count(self.stages.layers[stage].len());
            let bytes = |entry: &SchemeProfile| entry.activation_bytes_per_token.of(stage);
            // A kind saves fewer bytes in each of the `layers` in flight, and recomputes as many of one.
            let again = |entry: &SchemeProfile| (bytes(self.keeping) - bytes(entry)).max(0.0) / (layers - 1.0).max(1.0);
            let saved = |entry: &SchemeProfile| bytes(entry) - again(entry);
            let most = if share > 0.0 { again(self.other) } else { again(self.usual) };
            saved(self.usual) + share * (saved(self.other) - saved(self.usual)) + most
        };
        PerStage::each(self.shares(plan).enumerate().map(of_stage).collect())
    }

    /// Multipliers of stages whose times are the means of their times under the two kinds.
    fn multipliers(&self, plan: LayerPlan) -> Option<Vec<f64>> {
        let multipliers = [self.usual, self.computed()].map(|entry| entry.stage_multipliers.as_ref());
        let is_even = self.shares(plan).all(|share| share.total_cmp(&plan.share()).is_eq());
        if multipliers[0] == multipliers[1] && is_even {
            return multipliers[0].cloned();
        }
        let [usual, other] = [self.usual, self.computed()].map(one_token_ms);
        let of = |list: Option<&Vec<f64>>, stage: usize| list.map_or(1.0, |list| list[stage]);
        let of_stage = |(stage, share): (usize, f64)| {
            let [usual, other] = [usual * of(multipliers[0], stage), other * of(multipliers[1], stage)];
            usual + share * (other - usual)
        };
        let mean = usual + plan.share() * (other - usual);
        Some(self.shares(plan).enumerate().map(of_stage).map(|ms| ms / mean).collect())
    }

    /// The quality of the kind with the greater error, in the range of both; none unless both state theirs.
    fn fit(&self) -> Option<FitQuality> {
        let (usual, other) = (self.usual.fit?, self.computed().fit?);
        let worse = if other.error() > usual.error() { other } else { usual };
        let range = MeasuredRange {
            longest_tokens: usual.range.longest_tokens.min(other.range.longest_tokens),
            micro_batch_tokens: usual.range.micro_batch_tokens.min(other.range.micro_batch_tokens),
        };
        Some(FitQuality { range, ..worse })
    }
}

/// The time of a sequence of one token, the weight by which shares and multipliers of two kinds are averaged.
fn one_token_ms(entry: &SchemeProfile) -> f64 {
    entry.quadratic_ms_per_token2 + entry.linear_ms_per_token
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::preset;
    use crate::units::Tokens;

    /// Two kinds of one pipeline, each with its own multipliers; a stage's time and bytes are means of both.
    fn pair(scheme: &str) -> CostProfile {
        let mut profile = preset("llama-32b-a800").unwrap();
        let keeping = profile.schemes.iter().find(|entry| entry.scheme.to_string() == scheme).unwrap().clone();
        let (stages, of) = (keeping.scheme.stages(), |value: f64| PerStage::each(vec![value; keeping.scheme.stages()]));
        let keeping = SchemeProfile { activation_bytes_per_token: of(1_000_000.0), ..keeping };
        let full = SchemeProfile {
            scheme: keeping.scheme.with_checkpointing(CheckpointingKind::Full),
            quadratic_ms_per_token2: keeping.quadratic_ms_per_token2 * 1.25,
            linear_ms_per_token: keeping.linear_ms_per_token * 1.5,
            fixed_ms: keeping.fixed_ms * 2.0,
            forward_share: keeping.forward_share / 1.4,
            activation_bytes_per_token: of(100_000.0),
            stage_multipliers: (stages == 2).then(|| vec![0.8, 1.2]),
            ..keeping.clone()
        };
        profile.schemes = vec![keeping, full];
        profile
    }

    fn entry(profile: &CostProfile, place: usize) -> &SchemeProfile {
        &profile.schemes[place]
    }

    #[test]
    fn bytes_fall_by_equal_factors_and_times_are_means() {
        let profile = pair("<tp16>").with_layer_plans(3).unwrap();
        let texts: Vec<String> = profile.schemes[2..].iter().map(|entry| entry.scheme.to_string()).collect();
        // 1,000,000 bytes become 562,341, then 316,228 and 177,828: of 900,000 saved ones 48.6, 76.0 and 91.4 %.
        assert_eq!(texts, ["<tp16,full:29/60>", "<tp16,full:46/60>", "<tp16,full:55/60>"]);
        for place in 2..5 {
            let (none, full, mixed) = (entry(&profile, 0), entry(&profile, 1), entry(&profile, place));
            let share = mixed.scheme.layer_plan().share();
            let ms = |entry: &SchemeProfile| entry.micro_batch_ms([Tokens(3_000), Tokens(90)].into_iter()).0;
            let expected = (1.0 - share) * ms(none) + share * ms(full);
            assert!((ms(mixed) / expected - 1.0).abs() < 1e-12);
            // A layer saves 900,000 / 59 bytes less, and the backward holds that of one layer again.
            let bytes = 1_000_000.0 - (share * 60.0 - 1.0) * (900_000.0 / 59.0);
            assert!((mixed.activation_bytes_per_token.of(0) / bytes - 1.0).abs() < 1e-12);
            assert!(mixed.forward_share < none.forward_share && mixed.forward_share > full.forward_share);
        }
    }

    #[test]
    fn stages_mix_their_own_times() {
        let profile = pair("<tp8,pp2>").with_layer_plans(1).unwrap();
        let (none, full, mixed) = (entry(&profile, 0), entry(&profile, 1), entry(&profile, 2));
        let share = mixed.scheme.layer_plan().share();
        let ms = |entry: &SchemeProfile, stage: usize| {
            let multiplier = entry.stage_multipliers.as_ref().map_or(1.0, |list| list[stage]);
            multiplier * one_token_ms(entry)
        };
        for stage in 0..2 {
            let expected = (1.0 - share) * ms(none, stage) + share * ms(full, stage);
            assert!((ms(mixed, stage) / expected - 1.0).abs() < 1e-12, "{stage}");
        }
    }

    #[test]
    fn degrees_without_the_figures_have_none() {
        let shipped = preset("llama-32b-a800").unwrap();
        assert_eq!(shipped.clone().with_layer_plans(4).unwrap(), shipped);
        assert_eq!(pair("<tp16>").with_layer_plans(0).unwrap(), pair("<tp16>"));
        for change in [
            (|profile| profile.model = None) as fn(&mut CostProfile),
            |profile| profile.schemes[1].activation_bytes_per_token = PerStage::Fullest(2_000_000.0),
            |profile| drop(profile.schemes.remove(0)),
        ] {
            let mut profile = pair("<tp16>");
            change(&mut profile);
            assert_eq!(profile.clone().with_layer_plans(4).unwrap(), profile);
        }
        let mut fullest = pair("<tp8,pp2>");
        fullest.schemes[1].activation_bytes_per_token = PerStage::Fullest(100_000.0);
        assert_eq!(fullest.clone().with_layer_plans(4).unwrap(), fullest);
    }

    #[test]
    fn a_plan_that_the_profile_has_stays_as_measured() {
        let once = pair("<tp16>").with_layer_plans(2).unwrap();
        assert_eq!(once.clone().with_layer_plans(2).unwrap(), once);
    }

    #[test]
    fn the_greatest_number_of_plans_gives_one_for_each_number_of_layers() {
        assert_eq!(pair("<tp16>").with_layer_plans(u16::MAX).unwrap().schemes.len(), 2 + 59);
    }
}
