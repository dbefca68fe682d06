//! One option for each of identical layers under a memory limit, with times of changes: Galvatron's inner problem.
//!
//! Objective: the times of all layers and changes, and a constant `other_time`; memory is the sum over the layers and a
//! constant `other_mem`.

use hydraulis_core::tuning::{LayerOption, LayerProblem, NoLayerChoice, choose_layers};
use serde::Deserialize;
use serde_json::{Value, json};

use super::reading::{
    entries, read, require, require_layers, require_length, require_memories, require_memory, require_time,
    require_times,
};
use super::{Instance, Refusal, Solved};
use crate::{Error, Result};

#[derive(Deserialize)]
struct Problem {
    layers: usize,
    budget: f64,
    other_mem: f64,
    other_time: f64,
    mem_per_layer: Vec<f64>,
    time_per_layer: Vec<f64>,
    transition: Vec<Vec<f64>>,
    #[serde(default)]
    optimal_total: Option<f64>,
}

pub(super) fn instances(document: &Value) -> serde_json::Result<Vec<Instance>> {
    let instance = |(place, entry): (usize, &Value)| {
        let name = entry["name"].as_str().map_or_else(|| format!("{place}"), str::to_owned);
        match problem(entry) {
            Ok(problem) => Instance::new(name, problem.optimal_total, move || solve(&problem)),
            Err(error) => Instance::refused(name, error),
        }
    };
    Ok(entries(document, "instances")?.iter().enumerate().map(instance).collect())
}

fn problem(entry: &Value) -> Result<Problem> {
    let problem: Problem = read(entry)?;
    let count = problem.mem_per_layer.len();
    require(count > 0, "the length of mem_per_layer", count, "at least 1")?;
    require_layers(problem.layers)?;
    require_length("time_per_layer", problem.time_per_layer.len(), count)?;
    require_length("transition", problem.transition.len(), count)?;
    require_memory("other_mem", problem.other_mem)?;
    require_memories("mem_per_layer", &problem.mem_per_layer)?;
    require_times("time_per_layer", &problem.time_per_layer)?;
    require_time("other_time", problem.other_time)?;
    for (place, row) in problem.transition.iter().enumerate() {
        let field = format!("transition[{place}]");
        require_length(&field, row.len(), count)?;
        require_times(&field, row)?;
    }
    Ok(problem)
}

fn solve(problem: &Problem) -> Solved {
    let room = (problem.budget - problem.other_mem).floor();
    if room < 0.0 {
        return Err("memory_too_small".into());
    }
    let pairs = problem.mem_per_layer.iter().zip(&problem.time_per_layer);
    // The reference rounds the memory of a layer up to whole megabytes.
    let options: Vec<LayerOption> = pairs.map(|(mem, &time)| LayerOption { memory: whole(mem.ceil()), time }).collect();
    let layers = LayerProblem {
        layers: problem.layers,
        options: &options,
        transition: Some(&problem.transition),
        limit: whole(room),
    };
    let found = choose_layers(&layers).map_err(|reason| no_choice(reason, problem.layers))?;
    Ok((found.time + problem.other_time, json!({"choice": found.options, "memory": found.memory})))
}

/// The refusal of layers without a choice.
pub(super) fn no_choice(reason: NoLayerChoice, layers: usize) -> Refusal {
    let (field, value) = ("layers".to_owned(), layers.to_string());
    let limit = "fewer, or have fewer options: the exact search would take too many steps".to_owned();
    match reason {
        NoLayerChoice::Memory => "memory_too_small".into(),
        NoLayerChoice::Steps => Error::InstanceField { field, value, limit }.into(),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates, which is what a limit wants"
)]
pub(super) fn whole(x: f64) -> u64 {
    x as u64
}
