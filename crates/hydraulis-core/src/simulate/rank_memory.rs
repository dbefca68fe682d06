//! What each rank holds at its fullest moment.

use crate::cost::{CostModel, RankMemory};
use crate::error::Result;
use crate::plan::Plan;
use crate::simulate::workload::stages;
use crate::simulate::{Conditions, simulate_iteration};

/// The memory of each rank of the cluster when its stage holds most; none of ranks without work.
///
/// By what the profile says of its stage, as [`StageRun::memory`](crate::simulate::StageRun::memory).
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
