//! The memory of each rank at its peak.

use crate::cost::{CostModel, RankMemory};
use crate::error::Result;
use crate::plan::Plan;
use crate::simulate::workload::stages;
use crate::simulate::{Conditions, simulate_iteration};

/// The memory of each rank of the cluster at the peak of its stage. `None` for ranks without work.
///
/// The profile's figures for the stage apply, as in [`StageRun::memory`](crate::simulate::StageRun::memory).
pub fn rank_memory(plan: &Plan, cost: &CostModel) -> Result<Vec<Option<RankMemory>>> {
    let iteration = simulate_iteration(plan, cost, &Conditions::default())?;
    let mut by_rank = vec![None; plan.cluster.gpus() as usize];
    let at_work =
        iteration.replicas.iter().zip(&plan.replicas).filter(|(_, replica)| !replica.micro_batches.is_empty());
    for (run, replica) in at_work {
        for (stage, ranks) in run.stages.iter().zip(stages(replica)) {
            for &rank in ranks {
                by_rank[rank as usize] = Some(stage.memory);
            }
        }
    }
    Ok(by_rank)
}
