//! An iteration with its transfers, under stated conditions.

use crate::cost::CostModel;
use crate::error::Result;
use crate::pipeline::{Timeline, simulate_delayed};
use crate::plan::Plan;
use crate::simulate::workload::ReplicaWorkload;
use crate::timing::{Link, StepTimeline};
use crate::units::Millis;

/// From new parameters at home to all gradients at home.
#[derive(Clone, Debug, PartialEq)]
pub struct StepRun {
    /// The computations of each replica, in the strategy's order; a first forward lasts until its parameters are there.
    pub timelines: Vec<Timeline>,
    /// The way of each bucket's parameters out from home, in the order of the model's blocks.
    pub parameters: Vec<Trip>,
    /// The way of each bucket's gradients to their home.
    pub gradients: Vec<Trip>,
    /// When all gradients are at home, and every replica has ended.
    pub end: Millis,
    /// What of it is beyond the iteration: transfers that are not hidden.
    pub transfer: Millis,
    /// What all transfers take one after another, nothing hidden.
    pub alone: Millis,
}

/// When a bucket is on its way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trip {
    /// When it leaves.
    pub start: Millis,
    /// When it is there.
    pub end: Millis,
}

impl StepRun {
    /// The step of an iteration that takes `iteration` without transfers.
    pub(super) fn new(
        plan: &Plan,
        cost: &CostModel,
        link: &Link,
        workloads: &[ReplicaWorkload<'_>],
        iteration: Millis,
    ) -> Result<StepRun> {
        let times = link.transfer_times(&plan.positions(), plan.cluster, &cost.profile().every_scheme())?;
        let at_work: Vec<_> =
            workloads.iter().enumerate().filter(|(_, workload)| !workload.tokens.is_empty()).collect();
        let mut timelines = vec![Timeline::default(); workloads.len()];
        let work = at_work.iter().map(|(_, workload)| workload.work());
        let step = StepTimeline::of_runs(link.split(), &times, work, |place, first_ends| {
            let (index, workload) = at_work[place];
            timelines[index] = simulate_delayed(&workload.times, &workload.travel, first_ends);
            stage_ends(&timelines[index], workload.times.len())
        });
        let starts = [Millis::ZERO].iter().chain(&step.arrivals);
        // Sums of the same times in another order may seem shorter.
        let end = step.end.max(iteration);
        Ok(StepRun {
            timelines,
            parameters: starts.zip(&step.arrivals).map(|(&start, &end)| Trip { start, end }).collect(),
            gradients: step
                .departures
                .iter()
                .zip(&times.gradients)
                .map(|(&start, &ms)| Trip { start, end: start + ms })
                .collect(),
            end,
            transfer: end - iteration,
            alone: times.total(),
        })
    }
}

/// When the last computation of each stage ends.
fn stage_ends(timeline: &Timeline, stages: usize) -> Vec<Millis> {
    let mut ends = vec![Millis::ZERO; stages];
    for span in &timeline.spans {
        ends[span.stage] = ends[span.stage].max(span.end);
    }
    ends
}
