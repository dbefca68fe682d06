//! Attention and MLP of each layer replicated or sharded, under a memory limit: OSDP's problem.
//!
//! Tables give the time in seconds and the megabytes of a layer for each hidden size, batch index and option. Objective:
//! the time of all layers. A constant overhead is part of the memory; the reference counts whole megabytes of a layer,
//! rounded down.

use hydraulis_core::tuning::{LayerOption, LayerProblem, choose_layers};
use serde::Deserialize;
use serde::de::Error as _;
use serde_json::{Value, json};

use super::layer_choice::{no_choice, whole};
use super::reading::{
    entries, read, require, require_layers, require_length, require_memories, require_memory, require_times,
};
use super::{Instance, Solved};
use crate::{Error, Result};

#[derive(Deserialize)]
struct File {
    hidden_sizes: Vec<u64>,
    /// By hidden size, batch index and option; each hidden size is read alone.
    time_s: Vec<Value>,
    mem_mb: Vec<Value>,
    extra_overhead_mb: f64,
}

#[derive(Deserialize)]
struct Case {
    hidden: u64,
    layers: usize,
    limit_mb: f64,
    #[serde(default)]
    per_index: Vec<Option<Expected>>,
}

#[derive(Deserialize)]
struct Expected {
    cost: f64,
}

pub(super) fn instances(document: &Value) -> serde_json::Result<Vec<Instance>> {
    let file = File::deserialize(document)?;
    require_memory("extra_overhead_mb", file.extra_overhead_mb).map_err(serde_json::Error::custom)?;
    let of_case = |(place, entry): (usize, &Value)| match file.batches(entry) {
        Ok(instances) => instances,
        Err(error) => vec![Instance::refused(name(place, entry), error)],
    };
    Ok(entries(document, "cases")?.iter().enumerate().flat_map(of_case).collect())
}

/// Name of a case that cannot be read.
fn name(place: usize, entry: &Value) -> String {
    format!("case {place}: hidden {}, {} layers, {} MB", entry["hidden"], entry["layers"], entry["limit_mb"])
}

impl File {
    /// An instance for each batch index of a case.
    fn batches(&self, entry: &Value) -> Result<Vec<Instance>> {
        let case: Case = read(entry)?;
        require_layers(case.layers)?;
        let place = self.hidden_sizes.iter().position(|&hidden| hidden == case.hidden);
        let place = place.ok_or_else(|| Error::InstanceField {
            field: "hidden".to_owned(),
            value: case.hidden.to_string(),
            limit: format!("one of hidden_sizes {:?}", self.hidden_sizes),
        })?;
        let (times, memories) = (table("time_s", &self.time_s, place)?, table("mem_mb", &self.mem_mb, place)?);
        require(!times.is_empty(), format!("the length of time_s[{place}]"), 0, "at least one batch")?;
        require_length(format!("mem_mb[{place}]"), memories.len(), times.len())?;
        let mut instances = Vec::new();
        for (index, (times, memories)) in times.iter().zip(&memories).enumerate() {
            let name = format!("hidden {}, {} layers, {} MB, batch {index}", case.hidden, case.layers, case.limit_mb);
            let reference = case.per_index.get(index).and_then(Option::as_ref).map(|expected| expected.cost);
            let (layers, room) = (case.layers, case.limit_mb - self.extra_overhead_mb);
            instances.push(match options(times, memories) {
                Ok(options) => Instance::new(name, reference, move || solve(&options, layers, room)),
                Err(error) => Instance::refused(name, error),
            });
        }
        Ok(instances)
    }
}

/// The part of a table of one hidden size, by batch index and option.
fn table(field: &str, tables: &[Value], place: usize) -> Result<Vec<Vec<f64>>> {
    require(place < tables.len(), format!("the length of {field}"), tables.len(), "that of hidden_sizes")?;
    read(&tables[place]).map_err(|error| match error {
        Error::InstanceUnreadable { why } => Error::InstanceUnreadable { why: format!("{field}[{place}]: {why}") },
        other => other,
    })
}

fn options(times: &[f64], memories: &[f64]) -> Result<Vec<LayerOption>> {
    require(!times.is_empty(), "the length of time_s", 0, "at least one option of a batch")?;
    require_length("mem_mb of a batch", memories.len(), times.len())?;
    require_times("time_s of a batch", times)?;
    require_memories("mem_mb of a batch", memories)?;
    let options = times.iter().zip(memories);
    Ok(options.map(|(&time, &memory)| LayerOption { memory: whole(memory), time }).collect())
}

fn solve(options: &[LayerOption], layers: usize, room: f64) -> Solved {
    if room < 0.0 {
        return Err("memory_too_small".into());
    }
    let problem = LayerProblem { layers, options, transition: None, limit: whole(room) };
    let found = choose_layers(&problem).map_err(|reason| no_choice(reason, layers))?;
    let mut counts = vec![0_u64; options.len()];
    found.options.iter().for_each(|&option| counts[option] += 1);
    Ok((found.time, json!({"counts": counts, "memory": found.memory})))
}
