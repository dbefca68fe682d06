//! The memory of a simulated iteration: the tokens of a stage's saved activations over time, and each rank's peak.

use crate::cost::{CostModel, RankMemory};
use crate::error::Result;
use crate::pipeline::{Compute, Span};
use crate::plan::Plan;
use crate::simulate::workload::stages;
use crate::simulate::{Conditions, simulate_iteration};
use crate::units::{Millis, Tokens};

/// The tokens whose activations a stage saves for backward from one moment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedTokens {
    /// Time of the change.
    pub from: Millis,
    /// Tokens of all micro-batches whose forward has begun and whose backward has not ended.
    pub tokens: Tokens,
}

/// The saved tokens of one stage, from its spans in order. They change at the start of each forward and the end of each
/// backward.
pub(super) fn saved<'a>(spans: impl Iterator<Item = &'a Span>, tokens: &[Tokens]) -> Vec<SavedTokens> {
    let mut now = Tokens::default();
    let step = |span: &Span| match span.compute {
        Compute::Forward(micro_batch) => {
            now += tokens[micro_batch];
            SavedTokens { from: span.start, tokens: now }
        }
        Compute::Backward(micro_batch) => {
            now = now - tokens[micro_batch];
            SavedTokens { from: span.end, tokens: now }
        }
    };
    spans.map(step).collect()
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::{StageTimes, simulate};

    #[test]
    fn a_stage_saves_a_micro_batch_for_each_stage_from_it_on() {
        let times = StageTimes { forward: vec![Millis(1.0); 3], backward: vec![Millis(2.0); 3] };
        let timeline = simulate(&[times.clone(), times]);
        let of = |stage: usize| {
            let steps = saved(timeline.spans.iter().filter(|span| span.stage == stage), &[5, 7, 11].map(Tokens));
            steps.into_iter().map(|step| (step.from.0, step.tokens.0)).collect::<Vec<_>>()
        };
        assert_eq!(of(0), [(0.0, 5), (1.0, 12), (6.0, 7), (6.0, 18), (9.0, 11), (12.0, 0)]);
        assert_eq!(of(1), [(1.0, 5), (4.0, 0), (4.0, 7), (7.0, 0), (7.0, 11), (10.0, 0)]);
    }
}
