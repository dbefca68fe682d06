//! Recomputation in a chain of layers for every memory limit: Rotor's problem. Objective: forward and backward time.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use hydraulis_core::tuning::{Chain, RecomputeTable, recompute};
use serde::Deserialize;
use serde_json::{Value, json};

use super::reading::{MOST_WHOLE, entries, read, require, require_length, require_times};
use super::{Instance, Solved};
use crate::Result;

/// Most entries of a table, one for each part of a chain and each slot: a quarter of a gigabyte.
const MOST_ENTRIES: u64 = 1 << 25;
/// Most steps of a table, one for each slot of each way to divide each part of a chain: about two seconds.
const MOST_STEPS: u64 = 2_000_000_000;
/// Steps of a way to divide a part, besides those of its slots.
const STEPS_OF_WAY: u64 = 16;

#[derive(Deserialize)]
struct Stages {
    /// The number of layers, where it is stated.
    #[serde(default)]
    n: Option<usize>,
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
            Ok((stages, chain)) => (stages, chain),
            Err(error) => {
                instances.push(Instance::refused(format!("chain {place}"), error));
                continue;
            }
        };
        let budgets = stages.cost_by_budget_slots.keys().filter_map(|slots| slots.parse().ok());
        let table = Rc::new(Table::new(chain, budgets));
        for (slots, &reference) in &stages.cost_by_budget_slots {
            let name = format!("chain {place} of {}, {slots} slots", stages.ftime.len());
            let (table, slots) = (Rc::clone(&table), slots.clone());
            instances.push(Instance::new(name, reference, move || table.solve(&slots)));
        }
    }
    Ok(instances)
}

/// A chain and its times up to the greatest budget, which are found once.
struct Table {
    chain: Chain,
    /// Slots above which nothing changes.
    enough: u64,
    /// Most slots of a table.
    most: u64,
    /// The greatest budget that the table has.
    greatest: u64,
    times: OnceCell<RecomputeTable>,
}

impl Table {
    fn new(chain: Chain, limits: impl Iterator<Item = u64>) -> Table {
        let (enough, parts) = (enough(&chain), (chain.inputs.len() as u64).pow(2));
        let ways = (chain.inputs.len() as u64).pow(3) / 6;
        let most = (MOST_ENTRIES / parts.max(1)).min((MOST_STEPS / ways.max(1)).saturating_sub(STEPS_OF_WAY));
        let greatest = limits.map(|limit| limit.min(enough)).filter(|&limit| limit < most).max().unwrap_or_default();
        Table { chain, enough, most, greatest, times: OnceCell::new() }
    }

    fn solve(&self, slots: &str) -> Solved {
        let parsed: Option<u64> = slots.parse().ok();
        require(parsed.is_some(), "budget", slots, "a whole number from 0")?;
        let budget = parsed.unwrap_or_default();
        let limit = budget.min(self.enough);
        let below = format!("below {} slots for this chain: state memory in larger slots", self.most);
        require(limit < self.most, "budget", budget, below)?;
        let table = self.times.get_or_init(|| recompute(&self.chain, self.greatest));
        Ok((table.time(limit).ok_or("memory_too_small")?, json!({"budget": budget})))
    }
}

/// Slots above which nothing changes: those of all that may be saved at once, and of the stage that needs the most.
fn enough(chain: &Chain) -> u64 {
    let sum = |slots: &[u64]| slots.iter().fold(0_u64, |sum, &own| sum.saturating_add(own));
    let most = |slots: &[u64]| slots.iter().copied().max().unwrap_or_default();
    let saved = sum(&chain.saved).saturating_add(sum(&chain.inputs));
    // A forward has its input and output and a gradient, a backward has an input and what its forward saved.
    let stage = most(&chain.inputs).saturating_mul(3).saturating_add(most(&chain.saved));
    let extra = most(&chain.forward_extra).saturating_add(most(&chain.backward_extra));
    saved.saturating_add(stage).saturating_add(extra)
}

fn chain(stages: &Stages) -> Result<Chain> {
    let layers = stages.ftime.len();
    require(layers < 10_000, "the length of ftime", layers, "below 10000")?;
    require_length("ftime", layers, stages.n.unwrap_or(layers))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn stages() -> Value {
        json!({
            "ftime": [4.0, 4.0, 4.0], "btime": [8.0, 8.0, 8.0, 0.0], "x": [1, 1, 1, 1], "xbar": [1, 6, 6, 6],
            "ftmp": [1, 1, 1], "btmp": [2, 2, 2, 0], "cost_by_budget_slots": {"12": null},
        })
    }

    #[test]
    fn slots_above_all_that_is_saved_change_nothing() {
        let chain = chain(&Stages::deserialize(stages()).unwrap()).unwrap();
        let (own, enough) = (chain.clone(), enough(&chain));
        let table = recompute(&chain, 4 * enough);
        assert!((enough..=4 * enough).all(|limit| table.time(limit) == table.time(enough)));
        let capped = Table::new(own, [12, u64::MAX].into_iter());
        for limit in [12, 4 * enough, u64::MAX] {
            let time = capped.solve(&limit.to_string()).ok().map(|(time, _)| time);
            assert_eq!(time, table.time(limit.min(enough)));
        }
        assert_eq!(capped.solve(&u64::MAX.to_string()).unwrap().0.to_bits(), 36.0_f64.to_bits());
    }

    #[test]
    fn chains_of_too_many_slots_are_refused() {
        let mut stages = stages();
        stages["xbar"] = json!([1, 1_u64 << 40, 6, 6]);
        let table = Table::new(chain(&Stages::deserialize(stages).unwrap()).unwrap(), [12, u64::MAX].into_iter());
        let refusal = table.solve(&u64::MAX.to_string()).unwrap_err();
        assert_eq!(refusal.code, "argument_invalid");
        assert!(refusal.message.unwrap().contains("budget is 18446744073709551615: it must be below"));
        assert_eq!(table.solve("12").unwrap_err().code, "memory_too_small");
    }
}
