//! Recomputation in a chain of layers for every memory limit: Rotor's problem. Objective: forward and backward time.

use std::collections::BTreeMap;
use std::rc::Rc;

use hydraulis_core::tuning::{Chain, recompute};
use serde::Deserialize;
use serde_json::{Value, json};

use super::reading::{MOST_WHOLE, entries, read, require, require_length, require_times};
use super::{Instance, Solved};
use crate::Result;

/// Most entries of the solver's table: memory limits times parts of the chain.
const MOST_ENTRIES: u64 = 100_000_000;

#[derive(Deserialize)]
struct Stages {
    ftime: Vec<f64>,
    btime: Vec<f64>,
    x: Vec<u64>,
    xbar: Vec<u64>,
    ftmp: Vec<u64>,
    btmp: Vec<u64>,
    cost_by_budget_slots: BTreeMap<String, Option<f64>>,
}

pub(super) fn instances(document: &Value) -> serde_json::Result<Vec<Instance>> {
    let mut instances = Vec::new();
    for (place, entry) in entries(document, "chains")?.iter().enumerate() {
        let (stages, chain) = match read(entry).and_then(|stages: Stages| chain(&stages).map(|chain| (stages, chain))) {
            Ok((stages, chain)) => (stages, Rc::new(chain)),
            Err(error) => {
                instances.push(Instance::refused(format!("chain {place}"), error));
                continue;
            }
        };
        for (slots, &reference) in &stages.cost_by_budget_slots {
            let name = format!("chain {place} of {}, {slots} slots", stages.ftime.len());
            let (chain, slots) = (Rc::clone(&chain), slots.clone());
            instances.push(Instance::new(name, reference, move || solve(&chain, &slots)));
        }
    }
    Ok(instances)
}

fn solve(chain: &Chain, slots: &str) -> Solved {
    let parsed: Option<u64> = slots.parse().ok();
    require(parsed.is_some(), "budget", slots, "a whole number from 0")?;
    let budget = parsed.unwrap_or_default();
    // More memory than everything takes at once changes nothing.
    let all = chain.inputs.iter().chain(&chain.saved).chain(&chain.forward_extra).chain(&chain.backward_extra);
    let limit = budget.min(all.sum());
    let parts = (chain.backward.len() as u64).pow(2);
    let most = MOST_ENTRIES / parts;
    require(
        limit < most,
        "budget",
        budget,
        format!("below {most} slots for this chain: state memory in larger slots"),
    )?;
    let time = recompute(chain, limit).time(limit).ok_or("memory_too_small")?;
    Ok((time, json!({"budget": budget})))
}

fn chain(stages: &Stages) -> Result<Chain> {
    let layers = stages.ftime.len();
    require(layers < 10_000, "the length of ftime", layers, "below 10000")?;
    require(!stages.cost_by_budget_slots.is_empty(), "the length of cost_by_budget_slots", 0, "at least 1")?;
    for (field, length, expected) in [
        ("btime", stages.btime.len(), layers + 1),
        ("x", stages.x.len(), layers + 1),
        ("xbar", stages.xbar.len(), layers + 1),
        ("btmp", stages.btmp.len(), layers + 1),
        ("ftmp", stages.ftmp.len(), layers),
    ] {
        require_length(field, length, expected)?;
    }
    require_times("ftime", &stages.ftime)?;
    require_times("btime", &stages.btime)?;
    // Sums of all entries fit into 64 bits.
    let most = MOST_WHOLE / 100;
    for (field, memories) in [("x", &stages.x), ("xbar", &stages.xbar), ("ftmp", &stages.ftmp), ("btmp", &stages.btmp)]
    {
        let greatest = memories.iter().copied().max().unwrap_or_default();
        require(greatest <= most, format!("the greatest entry of {field}"), greatest, format!("at most {most}"))?;
    }
    Ok(Chain {
        forward: stages.ftime.clone(),
        backward: stages.btime.clone(),
        inputs: stages.x.clone(),
        saved: stages.xbar.clone(),
        forward_extra: stages.ftmp.clone(),
        backward_extra: stages.btmp.clone(),
    })
}
