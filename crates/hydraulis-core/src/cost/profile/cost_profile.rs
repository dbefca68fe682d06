//! The cost profile document: one model on one kind of cluster, with the source of its numbers.

use serde::{Deserialize, Serialize};
use serde_path_to_error::Track;

use crate::cost::class_cost::MicroBatchCost;
use crate::cost::profile::document::ProfileDocument;
use crate::cost::{CostFit, MeasuredLink, MeasuredRange, OtherDevice, PerStage};
use crate::error::{ProfileError, Result};
use crate::spec::{ContextKind, Dtype, ModelShape, Scheme, ShardingKind, Strategy};
use crate::units::{Millis, Tokens, count};

/// Most schemes of a profile that an error names.
const MOST_NAMED: usize = 16;

/// The value of a profile's `format` field.
pub(crate) const FORMAT: &str = "hydraulis.cost-profile/2";

/// Time and memory of one model under each scheme of one kind of cluster.
///
/// `docs/cost-profile.md` describes the JSON form field by field. A profile is checked when it is read:
/// every number has its range, and the error names the field.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CostProfile {
    pub(crate) format: String,
    /// Name of the profile in messages.
    pub name: String,
    /// Source of its numbers.
    pub source: String,
    /// Hardware of the measurements.
    pub hardware: Hardware,
    /// Measured model; training refuses the profile of another model. None if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelShape>,
    /// Type in which the model computed; training refuses another type. None if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<Dtype>,
    /// Attention kernel of the measurements, in words; a resumed run with another kernel measures again. None if
    /// unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention: Option<String>,
    /// Whether the elementwise operations were compiled; training refuses another choice. None if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compiled: Option<bool>,
    /// Whether the layers' linear maps multiplied in float8; training refuses another choice. None if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub float8: Option<bool>,
    /// Whether tensor parallelism exchanged through symmetric memory; training refuses another choice. None if
    /// unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symmetric_memory: Option<bool>,
    /// How ranks hold gradients, which the resident bytes and the transfers follow; training refuses another choice.
    #[serde(skip_serializing_if = "ShardingKind::is_none")]
    pub sharding: ShardingKind,
    /// Memory figures that do not depend on the scheme.
    pub memory: Memory,
    /// The measured schemes.
    pub schemes: Vec<SchemeProfile>,
    /// Schemes that were left out, with reasons.
    pub excluded: Vec<Excluded>,
    /// Strategies to choose from when the caller names none.
    pub strategies: Vec<StrategyList>,
    /// Profiles of the cluster's other devices; empty if it has this profile's alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub other_devices: Vec<OtherDevice>,
}

/// The hardware of a profile's measurements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hardware {
    /// Name of the device.
    pub device: String,
    /// Devices of a node.
    pub gpus_per_node: u32,
    /// Bytes of a device that the process may use.
    pub memory_bytes: u64,
    /// Bytes of host memory that a rank may use for activations: its part of the node's. None for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_memory_bytes: Option<u64>,
    /// Rate at which each rank of a node copies to host memory and at the same time back, in 1e9 bytes a second each
    /// way. None if unknown, or if copies are part of the computation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_gigabytes_per_s: Option<f64>,
    /// Measurements of its links; empty if none was made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<MeasuredLink>,
}

/// The memory figures that hold under every scheme.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// Margin, context and buffers of a rank.
    pub reserved_bytes: u64,
    /// Master parameters and optimizer state of the whole model; every rank holds an equal share, unless a run's only
    /// scheme has `stage_optimizer_bytes`.
    pub optimizer_bytes: u64,
    /// A micro-batch's limit is a multiple of this many tokens.
    pub token_multiple: u64,
}

/// One scheme's coefficients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SchemeProfile {
    /// The scheme.
    pub scheme: Scheme,
    /// The kind of context parallelism that was measured; present only if cp is above 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<ContextKind>,
    /// Milliseconds per squared token of one sequence, on one stage, forward and backward.
    pub quadratic_ms_per_token2: f64,
    /// Milliseconds per token.
    pub linear_ms_per_token: f64,
    /// Milliseconds per micro-batch.
    pub fixed_ms: f64,
    /// Milliseconds that every micro-batch takes at least, such as the host's launches of its kernels; 0 if absent.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub least_ms: f64,
    /// The forward pass's share of a micro-batch's time, without recomputation in the backward pass.
    pub forward_share: f64,
    /// Bytes of a stage's parameters and gradients, and all other memory of the stage's ranks that does not depend on
    /// tokens.
    pub resident_bytes: PerStage<u64>,
    /// Bytes of the optimizer state of each stage's parameters, which the stage's ranks own if the scheme is a run's
    /// only one; if absent, the state is assumed even.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage_optimizer_bytes: Option<Vec<u64>>,
    /// Bytes of a stage's activations per token of a micro-batch: a rank's peak, divided by all tokens of the
    /// micro-batch, including those of its other context ranks.
    pub activation_bytes_per_token: PerStage<f64>,
    /// Bytes of host memory of a rank of each stage for the same tokens; absent if no layer offloads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_bytes_per_token: Option<PerStage<f64>>,
    /// Time of each stage relative to the coefficients; all 1 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage_multipliers: Option<Vec<f64>>,
    /// Layers of each stage; split by cost if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage_layers: Option<Vec<u32>>,
    /// Errors of the coefficients on the measurements; none if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fit: Option<FitQuality>,
}

impl SchemeProfile {
    /// The time of a micro-batch of these sequences.
    pub fn micro_batch_ms(&self, sequences: impl Iterator<Item = Tokens>) -> Millis {
        self.micro_batch_cost().micro_batch_ms(sequences)
    }

    /// Tokens that no micro-batch of this scheme exceeds on ranks of this memory, whatever the optimizer shard takes.
    pub(crate) fn longest_tokens(&self, memory_bytes: u64, reserved_bytes: u64) -> f64 {
        let of_stage = |stage: usize| {
            let taken = reserved_bytes.saturating_add(self.resident_bytes.of(stage));
            count(memory_bytes.saturating_sub(taken)) / self.activation_bytes_per_token.of(stage)
        };
        (0..self.scheme.stages()).map(of_stage).fold(f64::INFINITY, f64::min).max(1.0)
    }

    pub(crate) fn micro_batch_cost(&self) -> MicroBatchCost {
        MicroBatchCost {
            quadratic_ms_per_token2: self.quadratic_ms_per_token2,
            linear_ms_per_token: self.linear_ms_per_token,
            fixed: Millis(self.fixed_ms),
            least: Millis(self.least_ms),
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(ms: &f64) -> bool {
    *ms <= 0.0
}

/// The quality of a scheme's coefficients.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FitQuality {
    /// Number of timed micro-batches.
    pub points: usize,
    /// Number of those that agreed so little with the rest that their weight was 0.
    pub outliers: usize,
    /// Root mean square of the relative errors.
    pub relative_error: f64,
    /// Median of the relative errors on points left out of the fit; none if too few were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out_error: Option<f64>,
    /// Range of the points; a prediction beyond it is an extrapolation.
    pub range: MeasuredRange,
}

impl FitQuality {
    /// The quality of a fit.
    pub fn of(fit: &CostFit) -> FitQuality {
        FitQuality {
            points: fit.residuals.len(),
            outliers: fit.outliers,
            relative_error: fit.relative_error,
            held_out_error: fit.held_out_error,
            range: fit.range,
        }
    }

    /// The JSON form, on one line.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a fit's quality is numbers alone")
    }

    /// The expected relative error of a prediction within the range.
    pub fn error(&self) -> f64 {
        self.held_out_error.unwrap_or(self.relative_error)
    }
}

/// A scheme that was measured and left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Excluded {
    /// The scheme.
    pub scheme: Scheme,
    /// The reason.
    pub reason: String,
}

/// The strategies to choose from on a cluster of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StrategyList {
    /// GPUs of the cluster.
    pub gpus: u32,
    /// The strategies.
    pub strategies: Vec<Strategy>,
}

impl CostProfile {
    /// Reads and checks the JSON form.
    pub fn from_json(text: &str) -> Result<CostProfile> {
        let mut document = serde_json::Deserializer::from_str(text);
        let mut track = Track::new();
        let tracked = serde_path_to_error::Deserializer::new(&mut document, &mut track);
        let read = ProfileDocument::deserialize(tracked);
        let profile =
            read.map_err(|error| ProfileError::Syntax { field: track.path().to_string(), why: error.to_string() })?;
        document
            .end()
            .map_err(|error| ProfileError::Syntax { field: "end of the document".into(), why: error.to_string() })?;
        profile.checked()
    }

    /// This profile, if every number is in its range.
    pub(crate) fn checked(self) -> Result<CostProfile> {
        self.check().map(|()| self)
    }

    /// A profile without content, for callers that fill in the rest.
    pub(crate) fn empty() -> CostProfile {
        CostProfile {
            format: FORMAT.into(),
            name: String::new(),
            source: String::new(),
            hardware: Hardware {
                device: String::new(),
                gpus_per_node: 1,
                memory_bytes: 1,
                host_memory_bytes: None,
                host_gigabytes_per_s: None,
                links: Vec::new(),
            },
            model: None,
            dtype: None,
            attention: None,
            compiled: None,
            float8: None,
            symmetric_memory: None,
            sharding: ShardingKind::None,
            memory: Memory { reserved_bytes: 0, optimizer_bytes: 0, token_multiple: 1 },
            schemes: Vec::new(),
            excluded: Vec::new(),
            strategies: Vec::new(),
            other_devices: Vec::new(),
        }
    }

    /// The JSON form, indented.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a profile holds numbers, texts and lists alone")
    }

    /// The schemes of the profile, for all of which a run's layout is built.
    pub fn every_scheme(&self) -> Vec<Scheme> {
        self.schemes.iter().map(|entry| entry.scheme).collect()
    }

    /// The coefficients of a scheme.
    pub fn scheme(&self, scheme: Scheme) -> Result<&SchemeProfile> {
        let found = self.schemes.iter().find(|entry| entry.scheme == scheme);
        found.ok_or_else(|| self.unknown(scheme).into())
    }

    /// The error for a scheme that the profile lacks, which names those of the same degrees first.
    fn unknown(&self, scheme: Scheme) -> ProfileError {
        let left_out = self.excluded.iter().find(|entry| entry.scheme == scheme);
        let is_alike = |known: &Scheme| known.degrees() == scheme.degrees();
        let (mut known, others): (Vec<Scheme>, Vec<Scheme>) = self.every_scheme().into_iter().partition(is_alike);
        if known.is_empty() || self.schemes.len() <= MOST_NAMED {
            known.extend(others);
        }
        known.truncate(MOST_NAMED);
        let names = known.iter().map(Scheme::to_string).collect::<Vec<_>>().join(" ");
        let are_all = known.len() == self.schemes.len();
        ProfileError::SchemeUnknown {
            scheme,
            profile: self.name.clone(),
            reason: left_out.map(|entry| format!(" (left out: {})", entry.reason)).unwrap_or_default(),
            known: if are_all { names } else { format!("its {} schemes, such as {names}", self.schemes.len()) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::preset;

    fn mended(change: impl FnOnce(&mut serde_json::Value)) -> Result<CostProfile> {
        let text = preset("llama-32b-a800").unwrap().to_json();
        let mut document: serde_json::Value = serde_json::from_str(&text).unwrap();
        change(&mut document);
        CostProfile::from_json(&document.to_string())
    }

    #[test]
    fn json_round_trips() {
        let profile = preset("llama-32b-a800").unwrap();
        assert_eq!(CostProfile::from_json(&profile.to_json()).unwrap(), profile);
        assert_eq!(mended(|_| ()).unwrap(), profile);
    }

    /// An unchecked profile cannot be read, even as a part of another document.
    #[test]
    fn a_deserialized_profile_is_checked() {
        let text = preset("llama-32b-a800").unwrap().to_json();
        let broken = text.replacen("\"gpus_per_node\": 8", "\"gpus_per_node\": 0", 1);
        let error = serde_json::from_str::<CostProfile>(&broken).unwrap_err().to_string();
        assert!(broken != text && error.contains("hardware.gpus_per_node is 0"), "{error}");
        assert_eq!(serde_json::from_str::<CostProfile>(&text).unwrap(), preset("llama-32b-a800").unwrap());
    }

    #[test]
    fn links_out_of_range_are_named() {
        let link = |field: &str, bad: &str| {
            mended(|document| {
                let link = serde_json::json!({
                    "operation": "all_to_all", "ranks": 8, "latency_ms": 0.03, "gigabytes_per_s": 90.0
                });
                document["hardware"]["links"] = serde_json::json!([link.clone(), link]);
                document["hardware"]["links"][1][field] = serde_json::from_str(bad).unwrap();
            })
        };
        assert!(link("latency_ms", "0").is_ok() && link("operation", "\"send\"").is_ok());
        for (field, bad) in [
            ("ranks", "1"),
            ("latency_ms", "-5"),
            ("latency_ms", "1e7"),
            ("gigabytes_per_s", "0"),
            ("gigabytes_per_s", "1e10"),
        ] {
            let error = link(field, bad).unwrap_err();
            assert_eq!(error.code(), "profile_invalid");
            assert!(error.to_string().contains(&format!("hardware.links[1].{field} is")), "{error}");
        }
        let error = link("operation", "\"all-to-all\"").unwrap_err();
        assert_eq!(error.code(), "profile_invalid");
        assert!(error.to_string().contains("hardware.links[1].operation: unknown variant `all-to-all`"), "{error}");
    }

    #[test]
    fn every_field_out_of_range_is_named() {
        for (pointer, bad) in [
            ("/format", "\"other/1\""),
            ("/schemes/0/forward_share", "1.0"),
            ("/schemes/1/forward_share", "0.0"),
            ("/hardware/gpus_per_node", "0"),
            ("/hardware/memory_bytes", "0"),
            ("/memory/token_multiple", "0"),
            ("/schemes", "[]"),
            ("/schemes/2/quadratic_ms_per_token2", "-1e-9"),
            ("/schemes/2/linear_ms_per_token", "-0.1"),
            ("/schemes/2/fixed_ms", "-1"),
            ("/schemes/2/least_ms", "-1"),
            ("/schemes/2/activation_bytes_per_token", "0"),
            ("/schemes/0/activation_bytes_per_token", "[1, 1, 0, 1]"),
            ("/schemes/0/activation_bytes_per_token", "[1, 1, 1]"),
            ("/schemes/0/resident_bytes", "[1, 1, 1, 1, 1]"),
            ("/schemes/2/resident_bytes", "[]"),
            ("/schemes/2/stage_optimizer_bytes", "[]"),
            ("/schemes/2/stage_multipliers", "[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]"),
            ("/schemes/0/stage_multipliers", "[1.0, 1.0, 1.0, 1e300]"),
            ("/schemes/0/stage_multipliers", "[1.0, 1.0, 1.0, 1e-300]"),
            ("/schemes/0/stage_layers", "[15, 15, 15]"),
            ("/schemes/0/stage_layers", "[30, 0, 15, 15]"),
            ("/schemes/0/stage_layers", "[15, 15, 15, 16]"),
            ("/schemes/2/scheme", "\"<tp1,pp4>\""),
            ("/schemes/2/fit/relative_error", "-0.1"),
            ("/schemes/2/fit/held_out_error", "-0.1"),
            ("/schemes/2/fit/range", r#"{"longest_tokens": 0, "micro_batch_tokens": 9}"#),
            ("/schemes/2/context", "\"ring\""),
            ("/schemes/2/scheme", "\"<tp8,full:3/59>\""),
        ] {
            let (parent, field) = pointer.rsplit_once('/').unwrap();
            let error = mended(|document| {
                document["schemes"][2]["fit"] = serde_json::json!({
                    "points": 8, "outliers": 1, "relative_error": 0.02, "held_out_error": 0.03,
                    "range": {"longest_tokens": 8, "micro_batch_tokens": 9}
                });
                document.pointer_mut(parent).unwrap()[field] = serde_json::from_str(bad).unwrap();
            })
            .unwrap_err();
            assert_eq!(error.code(), "profile_invalid", "{pointer}");
            assert!(error.to_string().contains(field), "{pointer}: {error}");
        }
    }

    #[test]
    fn a_token_takes_time() {
        for (quadratic, linear) in [(0.0, 0.0), (0.0, 5e-324), (1e-300, 0.0), (4e-13, 5e-13)] {
            let error = mended(|document| {
                document["schemes"][2]["quadratic_ms_per_token2"] = quadratic.into();
                document["schemes"][2]["linear_ms_per_token"] = linear.into();
            });
            let text = error.unwrap_err().to_string();
            assert!(text.contains("linear_ms_per_token") && text.contains("1e-12"), "{text}");
        }
    }

    #[test]
    fn missing_unknown_and_mistyped_fields_are_named() {
        let missing = mended(|document| drop(document["schemes"][1].as_object_mut().unwrap().remove("fixed_ms")));
        let unknown = mended(|document| document["memory"]["margin"] = 3.into());
        let mistyped = mended(|document| document["schemes"][1]["fixed_ms"] = "fast".into());
        let negative = mended(|document| document["schemes"][1]["resident_bytes"] = (-1).into());
        let other_kind = mended(|document| document["schemes"][0]["scheme"] = "<tp2,some>".into());
        for (result, part) in [
            (missing, "fixed_ms"),
            (unknown, "margin"),
            (mistyped, "schemes[1].fixed_ms"),
            (negative, "schemes[1].resident_bytes"),
            (
                mended(|document| document["schemes"][0]["resident_bytes"] = "much".into()),
                "a list of one for each stage",
            ),
            (other_kind, "schemes[0].scheme"),
        ] {
            let error = result.unwrap_err();
            assert_eq!(error.code(), "profile_invalid");
            assert!(error.to_string().contains(part), "{error}");
        }
        assert_eq!(CostProfile::from_json("{}{}").unwrap_err().code(), "profile_invalid");
        assert_eq!(CostProfile::from_json("[1, 2").unwrap_err().code(), "profile_invalid");
    }

    #[test]
    fn an_omitted_scheme_states_its_reason() {
        let profile = preset("llama-32b-a800").unwrap();
        let error = profile.scheme("<tp2>".parse().unwrap()).unwrap_err();
        assert_eq!(error.code(), "scheme_unknown");
        assert!(error.to_string().contains("left out"), "{error}");
    }
}
