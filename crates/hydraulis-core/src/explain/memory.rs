//! The memory of a plan's ranks in words: by use, and as it would be without the decisions that save memory.

use crate::cost::{CostModel, RankMemory};
use crate::error::Result;
use crate::explain::wrapped::table;
use crate::plan::Plan;
use crate::simulate::{Conditions, StageRun, simulate_iteration};
use crate::spec::{LayerPlan, Scheme};
use crate::units::{Tokens, count};

const GIB: f64 = 1_073_741_824.0;

/// The fullest rank of a scheme.
struct Fullest {
    scheme: Scheme,
    memory: RankMemory,
    /// Memory of the rank.
    limit: u64,
    /// Bytes for the same micro-batches with all activations saved on the device, and all parameters and gradients of the
    /// stage; none if the profile does not tell.
    otherwise: Option<f64>,
}

/// A table of the fullest rank of each scheme.
pub(super) fn memory(plan: &Plan, cost: &CostModel) -> Result<String> {
    let (fullest, sharding) = (fullest_ranks(plan, cost)?, cost.profile().sharding);
    let saves = !sharding.is_none() || fullest.iter().any(|one| !one.scheme.layer_plan().keeps_activations());
    let saves = saves && fullest.iter().any(|one| one.otherwise.is_some());
    let mut header = vec!["scheme", "parameters, gradients", "optimizer", "activations", "reserved", "total", "limit"];
    header.extend(saves.then_some("otherwise"));
    let mut rows = vec![header.iter().map(|&name| name.to_owned()).collect::<Vec<_>>()];
    rows.extend(fullest.iter().map(|one| {
        let RankMemory { resident, optimizer, activations, reserved } = one.memory;
        let bytes = [resident, optimizer, activations, reserved, one.memory.total(), count(one.limit)];
        let mut row = vec![one.scheme.to_string()];
        row.extend(bytes.map(gib));
        row.extend(saves.then(|| one.otherwise.map_or("-".into(), gib)));
        row
    }));
    let sharded = if sharding.is_none() { String::new() } else { format!(", with sharded {sharding}") };
    let mut text = format!("Memory of the fullest rank of each scheme in GiB{sharded}:\n{}", table(&rows));
    if saves {
        text.push_str(
            "\notherwise: total for the same micro-batches without recomputation, copies in host memory and sharding",
        );
        if fullest.iter().any(|one| one.otherwise.is_none()) {
            text.push_str(";\n-: the cost profile lacks the scheme without checkpointing");
        }
    }
    Ok(text)
}

/// The rank of each scheme with the least memory left, in the order of the plan's schemes.
fn fullest_ranks(plan: &Plan, cost: &CostModel) -> Result<Vec<Fullest>> {
    let iteration = simulate_iteration(plan, cost, &Conditions::default())?;
    let mut found: Vec<Fullest> = Vec::new();
    let at_work = iteration.replicas.iter().zip(&plan.replicas).filter(|(_, one)| !one.micro_batches.is_empty());
    for (run, replica) in at_work {
        let tokens = |ids: &Vec<usize>| ids.iter().map(|&id| plan.batch.tokens()[id]).sum::<Tokens>();
        let largest = replica.micro_batches.iter().map(tokens).max();
        let otherwise = otherwise(cost, replica.scheme, &run.stages, largest);
        let per_stage = replica.ranks.len() / run.stages.len();
        for (number, (stage, ranks)) in run.stages.iter().zip(replica.ranks.chunks(per_stage)).enumerate() {
            let usual = cost.profile().hardware.memory_bytes;
            let limit = ranks.iter().map(|&rank| plan.cluster.memory_of(rank).unwrap_or(usual)).min().unwrap_or(usual);
            let otherwise = otherwise.as_ref().map(|stages| stages[number]);
            let one = Fullest { scheme: replica.scheme, memory: stage.memory, limit, otherwise };
            match found.iter_mut().find(|known| known.scheme == one.scheme) {
                Some(known) if one.left() < known.left() => *known = one,
                Some(_) => {}
                None => found.push(one),
            }
        }
    }
    Ok(found)
}

impl Fullest {
    fn left(&self) -> f64 {
        count(self.limit) - self.memory.total()
    }
}

/// Bytes of a rank of each stage under a scheme of the same degrees without checkpointing, and without sharding; none if
/// the profile lacks the scheme, or the model that tells the size of parameters.
fn otherwise(cost: &CostModel, scheme: Scheme, stages: &[StageRun], largest: Option<Tokens>) -> Option<Vec<f64>> {
    let plain = scheme.with_layers(LayerPlan::KEEP);
    let peaks: Vec<Tokens> = stages.iter().map(|stage| stage.peak).collect();
    let memory = cost.rank_memory(plain, &peaks, largest).ok()?;
    let added = cost.profile().bytes_saved_by_sharding(plain)?;
    Some(memory.iter().map(|stage| stage.total() + count(added)).collect())
}

fn gib(bytes: f64) -> String {
    format!("{:.1}", bytes / GIB)
}
