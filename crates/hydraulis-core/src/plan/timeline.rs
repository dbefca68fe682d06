//! The timelines of a plan's replicas, predicted or with measured durations.

use crate::cost::CostModel;
use crate::error::{Error, Result};
use crate::pipeline::{Compute, StageTimes, Timeline, compute_order, simulate};
use crate::plan::{Plan, ReplicaPlan};
use crate::units::Millis;

/// The timeline of each replica by the cost model, from which the plan's times follow.
pub fn predicted_timeline(plan: &Plan, cost: &CostModel) -> Result<Vec<Timeline>> {
    plan.replicas.iter().map(|replica| Ok(simulate(&predicted_times(plan, replica, cost)?))).collect()
}

/// Duration of each computation of a replica by the cost model, stage by stage.
pub(crate) fn predicted_times(plan: &Plan, replica: &ReplicaPlan, cost: &CostModel) -> Result<Vec<StageTimes>> {
    let scheme = cost.replica(replica.scheme, &replica.ranks)?;
    let times = scheme.micro_batch_times(&replica.micro_batches, &plan.batch);
    let scaled = |factor: f64| times.iter().map(|&time| time * factor).collect();
    let stage = |&multiplier: &f64| StageTimes {
        forward: scaled(multiplier * scheme.forward_share()),
        backward: scaled(multiplier * (1.0 - scheme.forward_share())),
    };
    Ok(scheme.stage_multipliers().iter().map(stage).collect())
}

/// The timeline of each replica with measured durations.
///
/// `durations[replica][stage]` has one time for each forward and backward, in the order in which the stage computes.
/// The instruction lists are the same, so the result differs from the prediction by the times alone.
pub fn measured_timeline(plan: &Plan, durations: &[Vec<Vec<Millis>>]) -> Result<Vec<Timeline>> {
    let expected: Vec<Vec<usize>> = plan.replicas.iter().map(computations).collect();
    let given: Vec<Vec<usize>> = durations.iter().map(|stages| stages.iter().map(Vec::len).collect()).collect();
    if given != expected {
        return Err(Error::DurationsMismatch { given, expected });
    }
    let timeline = |(replica, durations): (&ReplicaPlan, &Vec<Vec<Millis>>)| {
        let (stages, micro_batches) = (replica.scheme.stages(), replica.micro_batches.len());
        let times = durations.iter().enumerate();
        let times = times.map(|(stage, times)| by_micro_batch(times, stage, stages, micro_batches));
        simulate(&times.collect::<Vec<_>>())
    };
    Ok(plan.replicas.iter().zip(durations).map(timeline).collect())
}

/// Number of forwards and backwards of each stage of a replica.
fn computations(replica: &ReplicaPlan) -> Vec<usize> {
    vec![2 * replica.micro_batches.len(); replica.scheme.stages()]
}

fn by_micro_batch(durations: &[Millis], stage: usize, stages: usize, micro_batches: usize) -> StageTimes {
    let mut times =
        StageTimes { forward: vec![Millis::ZERO; micro_batches], backward: vec![Millis::ZERO; micro_batches] };
    for (compute, &duration) in compute_order(stage, stages, micro_batches).zip(durations) {
        match compute {
            Compute::Forward(micro_batch) => times.forward[micro_batch] = duration,
            Compute::Backward(micro_batch) => times.backward[micro_batch] = duration,
        }
    }
    times
}
