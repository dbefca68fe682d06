//! The ranges of a cost profile's numbers.

use std::fmt;
use std::ops::RangeInclusive;

use crate::cost::profile::cost_profile::FORMAT;
use crate::cost::{CostProfile, FitQuality, MeasuredLink, OtherDevice, SchemeProfile};
use crate::error::{ProfileError, Result};
use crate::spec::{Cluster, Dtype, LinkRates, Scheme};

/// The greatest coefficient: far above any measured one, and small enough that no batch's time overflows.
const MAX_COEFFICIENT: f64 = 1e6;

/// The least time of a token. A token takes far longer on any device; shorter times would vanish after scaling and
/// subtraction.
const MIN_TOKEN_MS: f64 = 1e-12;

/// The range of stage multipliers. Stages of one model differ by far less; within these limits no time overflows or
/// vanishes.
const MULTIPLIERS: RangeInclusive<f64> = 1e-6..=1e6;

impl CostProfile {
    /// Returns a `profile_value` error for the first value outside its range.
    pub(crate) fn check(&self) -> Result<()> {
        let refuse = |field: String, value: String, limit: String| {
            Err(ProfileError::Value { profile: self.name.clone(), field, value, limit }.into())
        };
        if self.format != FORMAT {
            return refuse("format".into(), format!("'{}'", self.format), format!("'{FORMAT}'"));
        }
        for (field, number) in [
            ("hardware.gpus_per_node", u64::from(self.hardware.gpus_per_node)),
            ("hardware.memory_bytes", self.hardware.memory_bytes),
            ("memory.token_multiple", self.memory.token_multiple),
        ] {
            if number == 0 {
                return refuse(field.into(), number.to_string(), "at least 1".into());
            }
        }
        if let Some(rate) =
            self.hardware.host_gigabytes_per_s.filter(|rate| !(LinkRates::LEAST..=LinkRates::MOST).contains(rate))
        {
            let limit = format!("a number from {:e} to {:e}", LinkRates::LEAST, LinkRates::MOST);
            return refuse("hardware.host_gigabytes_per_s".into(), rate.to_string(), limit);
        }
        if self.schemes.is_empty() {
            return refuse("schemes".into(), "[]".into(), "a list of at least one scheme".into());
        }
        let of_links = self.hardware.links.iter().enumerate().filter_map(|(index, link)| {
            broken_link(link).map(|broken| broken.of(format_args!("hardware.links[{index}].")))
        });
        let of_schemes = self.schemes.iter().enumerate().filter_map(|(index, entry)| {
            self.broken(index, entry).map(|broken| broken.of(format_args!("schemes[{index}] {} ", entry.scheme)))
        });
        let of_devices = self.other_devices.iter().enumerate().filter_map(|(index, other)| {
            self.broken_device(other).map(|broken| broken.of(format_args!("other_devices[{index}].")))
        });
        let first = of_links.chain(of_schemes).chain(of_devices).next();
        first.map_or(Ok(()), |(field, Broken { value, limit, .. })| refuse(field, value, limit))
    }

    /// The first field of an entry whose value is outside its range.
    fn broken(&self, index: usize, entry: &SchemeProfile) -> Option<Broken> {
        let layers = self.model.as_ref().map(|model| model.fields().num_hidden_layers);
        let is_again = self.schemes[..index].iter().any(|earlier| earlier.scheme == entry.scheme);
        broken_costs(entry)
            .or_else(|| entry.fit.as_ref().and_then(broken_fit))
            .or_else(|| broken_stages(entry, layers))
            .or_else(|| broken_layers(entry.scheme, layers))
            .or_else(|| self.broken_kind(entry.scheme))
            .or_else(|| is_again.then(|| Broken::new("scheme", entry.scheme.to_string(), "given once")))
    }

    /// The first field of another device's profile that does not belong to this one.
    fn broken_device(&self, other: &OtherDevice) -> Option<Broken> {
        let OtherDevice { rate, profile } = other;
        if !Cluster::RATES.contains(rate) {
            let limit = format!("a number from {} to {}", Cluster::RATES.start(), Cluster::RATES.end());
            return Some(Broken::new("rate", rate.to_string(), limit));
        }
        if !profile.other_devices.is_empty() {
            let limit = "empty: state each device once";
            return Some(Broken::new("profile.other_devices", "a list of profiles".into(), limit));
        }
        if profile.model != self.model {
            return Some(Broken::new("profile.model", "another one".into(), "that of the first device"));
        }
        if profile.sharding != self.sharding {
            let limit = format!("'{}', as on the first device", self.sharding);
            return Some(Broken::new("profile.sharding", format!("'{}'", profile.sharding), limit));
        }
        if profile.dtype != self.dtype {
            let name = |dtype: Option<Dtype>| dtype.map_or("absent".into(), |dtype| format!("'{}'", dtype.name()));
            let limit = format!("{}, as on the first device", name(self.dtype));
            return Some(Broken::new("profile.dtype", name(profile.dtype), limit));
        }
        let described = |profile: &CostProfile| profile.schemes.iter().map(described).collect::<Vec<_>>().join(" ");
        let (given, own) = (described(profile), described(self));
        let limit = || format!("those of the first device, in their order: {own}");
        (given != own).then(|| Broken::new("profile.schemes", given.clone(), limit()))
    }

    /// A scheme with stages, where ranks hold parameters or gradients in parts.
    fn broken_kind(&self, scheme: Scheme) -> Option<Broken> {
        let limit = "a scheme without stages where sharding is not 'none'";
        (scheme.pp() > 1 && !self.sharding.is_none()).then(|| Broken::new("scheme", scheme.to_string(), limit))
    }
}

/// A scheme with its layers and its kind of context parallelism.
fn described(entry: &SchemeProfile) -> String {
    let layers = entry.stage_layers.as_ref().map(|layers| format!(" of layers {layers:?}")).unwrap_or_default();
    let context = entry.context.map(|kind| format!(" by {kind}")).unwrap_or_default();
    format!("{}{layers}{context}", entry.scheme)
}

/// A field of an entry whose value is outside its range.
struct Broken {
    field: &'static str,
    value: String,
    limit: String,
}

impl Broken {
    fn new(field: &'static str, value: String, limit: impl Into<String>) -> Broken {
        Broken { field, value, limit: limit.into() }
    }

    /// The full path of the field, with the field itself.
    fn of(self, entry: fmt::Arguments) -> (String, Broken) {
        (format!("{entry}{}", self.field), self)
    }
}

fn broken_link(link: &MeasuredLink) -> Option<Broken> {
    if link.ranks < 2 {
        return Some(Broken::new("ranks", link.ranks.to_string(), "at least 2"));
    }
    if !(0.0..=MAX_COEFFICIENT).contains(&link.latency_ms) {
        return Some(Broken::new("latency_ms", link.latency_ms.to_string(), from_zero()));
    }
    if !(LinkRates::LEAST..=LinkRates::MOST).contains(&link.gigabytes_per_s) {
        let limit = format!("a number from {:e} to {:e}", LinkRates::LEAST, LinkRates::MOST);
        return Some(Broken::new("gigabytes_per_s", link.gigabytes_per_s.to_string(), limit));
    }
    None
}

fn from_zero() -> String {
    format!("a number from 0 to {MAX_COEFFICIENT:e}")
}

fn broken_costs(entry: &SchemeProfile) -> Option<Broken> {
    if entry.context.is_some() != (entry.scheme.cp() > 1) {
        let given = entry.context.map_or("absent".into(), |kind| format!("'{kind}'"));
        let limit = "'ulysses' or 'ring' where cp is above 1, and absent where it is 1";
        return Some(Broken::new("context", given, limit));
    }
    for (field, number) in [
        ("quadratic_ms_per_token2", entry.quadratic_ms_per_token2),
        ("linear_ms_per_token", entry.linear_ms_per_token),
        ("fixed_ms", entry.fixed_ms),
        ("least_ms", entry.least_ms),
    ] {
        if !(0.0..=MAX_COEFFICIENT).contains(&number) {
            return Some(Broken::new(field, number.to_string(), from_zero()));
        }
    }
    if !(entry.forward_share > 0.0 && entry.forward_share < 1.0) {
        let number = entry.forward_share.to_string();
        return Some(Broken::new("forward_share", number, "between 0 and 1, both excluded"));
    }
    if entry.quadratic_ms_per_token2 + entry.linear_ms_per_token < MIN_TOKEN_MS {
        let number = entry.linear_ms_per_token.to_string();
        let limit = format!("with quadratic_ms_per_token2 at least {MIN_TOKEN_MS:e}");
        return Some(Broken::new("linear_ms_per_token", number, limit));
    }
    broken_memory(entry)
}

fn broken_memory(entry: &SchemeProfile) -> Option<Broken> {
    let (resident, activations) = (&entry.resident_bytes, &entry.activation_bytes_per_token);
    if !resident.is_for(entry.scheme.stages()) {
        let limit = "a whole number from 0, or one for each stage";
        return Some(Broken::new("resident_bytes", format!("{:?}", resident.stated()), limit));
    }
    let optimizer = entry.stage_optimizer_bytes.as_ref();
    if let Some(optimizer) = optimizer.filter(|optimizer| optimizer.len() != entry.scheme.stages()) {
        let limit = "a whole number from 0 for each stage, or absent";
        return Some(Broken::new("stage_optimizer_bytes", format!("{optimizer:?}"), limit));
    }
    let are_sound = activations.stated().iter().all(|bytes| bytes.is_finite() && *bytes > 0.0);
    if !(are_sound && activations.is_for(entry.scheme.stages())) {
        let limit = "a finite number above 0, or one for each stage";
        return Some(Broken::new("activation_bytes_per_token", format!("{:?}", activations.stated()), limit));
    }
    broken_host_memory(entry)
}

/// Host memory is stated exactly where layers offload.
fn broken_host_memory(entry: &SchemeProfile) -> Option<Broken> {
    let limit = "a finite number from 0, or one for each stage, where layers offload, and absent where none does";
    let Some(host) = &entry.host_bytes_per_token else {
        let is_missing = entry.scheme.layer_plan().offloads();
        return is_missing.then(|| Broken::new("host_bytes_per_token", "absent".into(), limit));
    };
    let are_sound = host.stated().iter().all(|bytes| bytes.is_finite() && *bytes >= 0.0);
    let is_sound = are_sound && host.is_for(entry.scheme.stages()) && entry.scheme.layer_plan().offloads();
    (!is_sound).then(|| Broken::new("host_bytes_per_token", format!("{:?}", host.stated()), limit))
}

fn broken_fit(fit: &FitQuality) -> Option<Broken> {
    for (field, error) in [("fit.relative_error", Some(fit.relative_error)), ("fit.held_out_error", fit.held_out_error)]
    {
        if error.is_some_and(|error| !(0.0..=MAX_COEFFICIENT).contains(&error)) {
            return Some(Broken::new(field, format!("{error:?}"), from_zero()));
        }
    }
    let is_empty = fit.range.longest_tokens.0 == 0 || fit.range.micro_batch_tokens.0 == 0;
    is_empty.then(|| Broken::new("fit.range", format!("{:?}", fit.range), "at least 1 token each"))
}

/// A layer plan for another number of layers than the model's, where it is known.
fn broken_layers(scheme: Scheme, layers: Option<u64>) -> Option<Broken> {
    let (planned, layers) = (scheme.layer_plan().layers()?, layers?);
    let limit = || format!("a plan of the model's {layers} layers");
    (u64::from(planned) != layers).then(|| Broken::new("scheme", scheme.to_string(), limit()))
}

/// The first invalid stage field of an entry; `layers` is the model's number of layers, where it is known.
fn broken_stages(entry: &SchemeProfile, layers: Option<u64>) -> Option<Broken> {
    let stages = entry.scheme.stages();
    if let Some(multipliers) = &entry.stage_multipliers
        && !(multipliers.len() == stages && multipliers.iter().all(|factor| MULTIPLIERS.contains(factor)))
    {
        let limit = format!("one number from {:e} to {:e} for each stage", MULTIPLIERS.start(), MULTIPLIERS.end());
        return Some(Broken::new("stage_multipliers", format!("{multipliers:?}"), limit));
    }
    let split = entry.scheme.split().layers();
    if !split.is_empty() && entry.stage_layers.as_ref() != Some(&split) {
        let limit = "the layers that the scheme states";
        return Some(Broken::new("stage_layers", format!("{:?}", entry.stage_layers), limit));
    }
    let of_stages = entry.stage_layers.as_ref()?;
    let refused = |limit| Some(Broken::new("stage_layers", format!("{of_stages:?}"), limit));
    if of_stages.len() != stages || of_stages.contains(&0) {
        return refused("at least one layer for each stage");
    }
    let sum: u64 = of_stages.iter().map(|&count| u64::from(count)).sum();
    if layers.is_some_and(|layers| layers != sum) {
        return refused("as many layers together as the model has");
    }
    None
}
