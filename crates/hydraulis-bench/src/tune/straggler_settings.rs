//! Settings of Malleus's problem as its planner's files state them, with the plans that it found.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Refusal;
use super::reading::{MOST_TIME, require, require_memories, require_times};
use crate::Result;

/// Ranks of a node in the reference.
const NODE: usize = 8;

#[derive(Deserialize)]
pub(super) struct Run {
    #[serde(default)]
    pub(super) ctx: String,
    #[serde(default)]
    pub(super) setting: String,
    pub(super) inputs: Inputs,
    #[serde(default)]
    pub(super) topk_objectives: Vec<f64>,
    /// Times of a layer on each stage of each pipeline, of the plans with these objectives.
    #[serde(default)]
    topk_templates: Value,
    /// Layers of the same stages.
    #[serde(default)]
    topk_l: Value,
    /// Micro-batches of each pipeline.
    #[serde(default)]
    topk_m: Value,
}

#[derive(Deserialize)]
pub(super) struct Inputs {
    pub(super) dp: usize,
    pub(super) tp: usize,
    pub(super) layers: u64,
    pub(super) mbn: u64,
    pub(super) hetero_tp_alpha: Vec<f64>,
    pub(super) memory_k: Vec<f64>,
    pub(super) memory_embedding: f64,
    pub(super) memory_extra: f64,
    pub(super) memory_bound: f64,
    pub(super) memory_safe_gap: f64,
    #[serde(default)]
    pub(super) straggler_threshold: Option<f64>,
    pub(super) used_devices_sr: BTreeMap<String, f64>,
    #[serde(default)]
    pub(super) suspended_devices_sr: BTreeMap<String, f64>,
}

/// A plan of the reference.
pub(super) struct ReferencePlan {
    /// Time of a layer on each stage of each pipeline.
    pub(super) times: Vec<Vec<f64>>,
    /// Layers of the stages.
    pub(super) layers: Vec<Vec<u64>>,
    /// Micro-batches of each pipeline.
    pub(super) micro_batches: Vec<u64>,
}

impl Inputs {
    /// Group times below it count as 1, as in the reference.
    fn threshold(&self) -> f64 {
        self.straggler_threshold.unwrap_or(1.0)
    }

    /// The rates of all devices, by their numbers as texts.
    fn rates(&self) -> impl Iterator<Item = (&String, &f64)> {
        self.used_devices_sr.iter().chain(&self.suspended_devices_sr)
    }

    /// Time of a layer on a group of this many ranks with this greatest rate; none if the setting states no factor for them.
    pub(super) fn time(&self, ranks: usize, rate: f64) -> Option<f64> {
        let halvings = (self.tp / ranks).ilog2() as usize;
        let time = self.hetero_tp_alpha.get(halvings)? * rate;
        Some(if time < self.threshold() { 1.0 } else { time })
    }
}

impl Run {
    /// The reference's best plan; none if the file does not state it.
    pub(super) fn reference_plan(&self) -> Option<ReferencePlan> {
        Some(ReferencePlan {
            times: first(&self.topk_templates)?,
            layers: first(&self.topk_l)?,
            micro_batches: first(&self.topk_m)?,
        })
    }
}

fn first<T: DeserializeOwned>(plans: &Value) -> Option<T> {
    serde_json::from_value(plans.get(0)?.clone()).ok()
}

/// Most micro-batches of a step, which are shared out one by one.
const MOST_MICRO_BATCHES: u64 = 1_000_000;

/// The rates of each node's ranks, ascending.
pub(super) fn nodes(inputs: &Inputs) -> std::result::Result<Vec<Vec<f64>>, Refusal> {
    check(inputs)?;
    let mut devices: BTreeMap<usize, f64> = BTreeMap::new();
    for (text, &rate) in inputs.rates() {
        let device: usize = text.parse().map_err(|_| "device_invalid")?;
        let is_new = devices.insert(device, rate).is_none();
        require(is_new, format!("the number of rates of device {device}"), 2, 1)?;
    }
    let mut nodes: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for (device, rate) in devices {
        nodes.entry(device / NODE).or_default().push(rate);
    }
    let mut nodes: Vec<Vec<f64>> = nodes.into_values().collect();
    for rates in &mut nodes {
        rates.sort_unstable_by(f64::total_cmp);
    }
    require(!nodes.is_empty(), "the number of devices with a rate", 0, "at least 1")?;
    if inputs.mbn > MOST_MICRO_BATCHES {
        return Err("too_many_micro_batches".into());
    }
    if nodes.iter().map(Vec::len).sum::<usize>() < inputs.dp {
        return Err("too_few_devices".into());
    }
    if inputs.mbn < inputs.dp as u64 {
        return Err("too_few_micro_batches".into());
    }
    Ok(nodes)
}

/// Refuses settings whose times or memories are no positive numbers.
fn check(inputs: &Inputs) -> Result<()> {
    require(inputs.dp > 0, "dp", inputs.dp, "at least 1")?;
    require(inputs.layers > 0, "layers", inputs.layers, "at least 1")?;
    require(inputs.tp.is_power_of_two(), "tp", inputs.tp, "a power of two")?;
    for (field, list) in [("hetero_tp_alpha", &inputs.hetero_tp_alpha), ("memory_k", &inputs.memory_k)] {
        require(!list.is_empty(), format!("the length of {field}"), 0, "at least 1")?;
        for (place, &value) in list.iter().enumerate() {
            require(value > 0.0, format!("{field}[{place}]"), value, "above 0")?;
        }
    }
    require_times("hetero_tp_alpha", &inputs.hetero_tp_alpha)?;
    require_memories("memory_k", &inputs.memory_k)?;
    for (field, value) in [
        ("memory_embedding", inputs.memory_embedding),
        ("memory_extra", inputs.memory_extra),
        ("memory_safe_gap", inputs.memory_safe_gap),
        ("straggler_threshold", inputs.threshold()),
    ] {
        require(value >= 0.0, field, value, "at least 0")?;
    }
    for (device, &rate) in inputs.rates() {
        let limit = format!("above 0 and at most {MOST_TIME:e}");
        require(rate > 0.0 && rate <= MOST_TIME, format!("the rate of device {device}"), rate, limit)?;
    }
    Ok(())
}
