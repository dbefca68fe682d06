//! One option for each of identical layers under a memory limit, with times of changes: Galvatron's inner problem.
//!
//! Objective: the times of all layers and changes, and a constant `other_time`; memory is the sum over the layers and a
//! constant `other_mem`.

use hydraulis_core::tuning::{LayerOption, LayerProblem, choose_layers};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Instance, Solved};

#[derive(Deserialize)]
struct File {
    instances: Vec<Problem>,
}

#[derive(Deserialize)]
struct Problem {
    #[serde(default)]
    name: Option<String>,
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
    let file = File::deserialize(document)?;
    let instance = |(place, problem): (usize, Problem)| {
        let name = problem.name.clone().unwrap_or_else(|| format!("{place}"));
        Instance::new(name, problem.optimal_total, move || solve(&problem))
    };
    Ok(file.instances.into_iter().enumerate().map(instance).collect())
}

fn solve(problem: &Problem) -> Solved {
    let room = (problem.budget - problem.other_mem).floor();
    if room < 0.0 {
        return Err("memory_too_small".to_owned());
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
    let found = choose_layers(&layers).ok_or("memory_too_small")?;
    Ok((found.time + problem.other_time, json!({"choice": found.options, "memory": found.memory})))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates, which is what a limit wants"
)]
pub(super) fn whole(x: f64) -> u64 {
    x as u64
}
