//! Attention and MLP of each layer replicated or sharded, under a memory limit: OSDP's problem.
//!
//! Tables give the time in seconds and the megabytes of a layer for each hidden size, batch index and option. Objective:
//! the time of all layers. A constant overhead is part of the memory; the reference counts whole megabytes of a layer,
//! rounded down.

use hydraulis_core::tuning::{LayerOption, LayerProblem, choose_layers};
use serde::Deserialize;
use serde_json::{Value, json};

use super::layer_choice::whole;
use super::{Instance, Solved};

#[derive(Deserialize)]
struct File {
    hidden_sizes: Vec<u64>,
    time_s: Vec<Vec<Vec<f64>>>,
    mem_mb: Vec<Vec<Vec<f64>>>,
    extra_overhead_mb: f64,
    cases: Vec<Case>,
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
    let mut instances = Vec::new();
    for case in &file.cases {
        let place = file.hidden_sizes.iter().position(|&hidden| hidden == case.hidden);
        let (times, memories) = place.map(|place| (&file.time_s[place], &file.mem_mb[place])).unzip();
        let (Some(times), Some(memories)) = (times, memories) else {
            return Err(serde::de::Error::custom(format!("hidden size {} is not in hidden_sizes", case.hidden)));
        };
        for (index, (times, memories)) in times.iter().zip(memories).enumerate() {
            let name = format!("hidden {}, {} layers, {} MB, batch {index}", case.hidden, case.layers, case.limit_mb);
            let reference = case.per_index.get(index).and_then(Option::as_ref).map(|expected| expected.cost);
            let options = times.iter().zip(memories);
            let options: Vec<LayerOption> =
                options.map(|(&time, &memory)| LayerOption { memory: whole(memory), time }).collect();
            let (layers, room) = (case.layers, case.limit_mb - file.extra_overhead_mb);
            instances.push(Instance::new(name, reference, move || solve(&options, layers, room)));
        }
    }
    Ok(instances)
}

fn solve(options: &[LayerOption], layers: usize, room: f64) -> Solved {
    let problem = LayerProblem { layers, options, transition: None, limit: whole(room.max(0.0)) };
    let found = choose_layers(&problem).filter(|_| room >= 0.0).ok_or("memory_too_small")?;
    let mut counts = vec![0_u64; options.len()];
    found.options.iter().for_each(|&option| counts[option] += 1);
    Ok((found.time, json!({"counts": counts, "memory": found.memory})))
}
