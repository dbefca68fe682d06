//! Recomputation in a chain of layers for every memory limit: Rotor's problem. Objective: forward and backward time.

use std::collections::BTreeMap;
use std::rc::Rc;

use hydraulis_core::tuning::{Chain, recompute};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Instance;

#[derive(Deserialize)]
struct File {
    chains: Vec<Stages>,
}

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
    let file = File::deserialize(document)?;
    let mut instances = Vec::new();
    for (place, stages) in file.chains.into_iter().enumerate() {
        let chain = Rc::new(chain(&stages)?);
        for (slots, &reference) in &stages.cost_by_budget_slots {
            let limit: u64 = slots.parse().map_err(|_| wrong(&format!("budget '{slots}' is no whole number")))?;
            let (chain, name) = (Rc::clone(&chain), format!("chain {place} of {}, {limit} slots", stages.ftime.len()));
            instances.push(Instance::new(name, reference, move || {
                let time = recompute(&chain, limit).time(limit).ok_or("memory_too_small")?;
                Ok((time, json!({"budget": limit})))
            }));
        }
    }
    Ok(instances)
}

fn chain(stages: &Stages) -> serde_json::Result<Chain> {
    let layers = stages.ftime.len();
    let lengths = [stages.btime.len(), stages.x.len(), stages.xbar.len(), stages.btmp.len()];
    if lengths != [layers + 1; 4] || stages.ftmp.len() != layers {
        return Err(wrong("ftime and ftmp have n entries, btime, x, xbar and btmp n + 1"));
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

fn wrong(why: &str) -> serde_json::Error {
    serde::de::Error::custom(why)
}
