//! An iteration with its transfers, under stated conditions.

use crate::cost::CostModel;
use crate::error::Result;
use crate::pipeline::{Compute, MakespanBuffers, Span, Timeline, simulate_delayed};
use crate::plan::Plan;
use crate::simulate::workload::ReplicaWorkload;
use crate::timing::{Link, Rounds, StepTimeline};
use crate::units::Millis;

/// One step, from new parameters at their owners to all gradients at their owners.
#[derive(Clone, Debug, PartialEq)]
pub struct StepRun {
    /// Computations of each replica, in the strategy's order. A first forward lasts until its parameters arrive.
    pub timelines: Vec<Timeline>,
    /// Transfer span of each bucket's parameters from their owners, in the order of the model's layer groups.
    pub parameters: Vec<TransferSpan>,
    /// Bucket and transfer span of each gather of sharded parameters.
    pub gathers: Vec<(usize, TransferSpan)>,
    /// Transfer span of each bucket's gradients to their owners, of the last one under sharded gradients.
    pub gradients: Vec<TransferSpan>,
    /// The same in each earlier round; none if gradients leave once.
    pub earlier_gradients: Vec<Vec<TransferSpan>>,
    /// Time at which the owners have all gradients and every replica has ended.
    pub end: Millis,
    /// Part of the step beyond the iteration: exposed transfers.
    pub transfer: Millis,
    /// Time of all transfers one after another, without overlap.
    pub alone: Millis,
}

/// The transfer span of one bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransferSpan {
    /// Start of the transfer.
    pub start: Millis,
    /// End of the transfer.
    pub end: Millis,
}

impl StepRun {
    /// The step of an iteration that takes the time `iteration` without transfers.
    pub(super) fn new(
        plan: &Plan,
        cost: &CostModel,
        link: &Link,
        workloads: &[ReplicaWorkload<'_>],
        iteration: Millis,
    ) -> Result<StepRun> {
        let schemes = cost.profile().every_scheme();
        let counts = plan.micro_batches_of_ranks();
        let rounds = Rounds::of(cost.profile().sharding, &counts);
        let times = link.transfer_times(&plan.positions(), rounds, &plan.cluster, &schemes)?;
        let at_work: Vec<_> =
            workloads.iter().enumerate().filter(|(_, workload)| !workload.tokens.is_empty()).collect();
        let mut timelines = vec![Timeline::default(); workloads.len()];
        let work = at_work.iter().map(|(_, workload)| workload.work());
        let step = if rounds.is_some() {
            let step = StepTimeline::new(link.split(), &times, work, &mut MakespanBuffers::default());
            for ((index, _), ends) in at_work.iter().zip(&step.computations) {
                timelines[*index] = of_computations(ends);
            }
            step
        } else {
            StepTimeline::of_runs(link.split(), &times, work, |place, first_ends| {
                let (index, workload) = at_work[place];
                timelines[index] = simulate_delayed(&workload.times, &workload.travel, first_ends);
                stage_ends(&timelines[index], workload.times.len())
            })
        };
        let earlier = times.earlier_rounds.iter().flatten();
        let starts = [Millis::ZERO].iter().chain(&step.arrivals);
        // Sums of the same times in another order may be shorter by a rounding error.
        let end = step.end.max(iteration);
        Ok(StepRun {
            timelines,
            parameters: starts.zip(&step.arrivals).map(|(&start, &end)| TransferSpan { start, end }).collect(),
            gradients: spans(&step.departures, &times.gradients),
            gathers: step.gathers.iter().map(|&(bucket, start, end)| (bucket, TransferSpan { start, end })).collect(),
            earlier_gradients: step.earlier_departures.iter().zip(earlier).map(|(at, ms)| spans(at, ms)).collect(),
            end,
            transfer: end - iteration,
            alone: times.total(),
        })
    }
}

/// The transfer span of each bucket, by its start and its time.
fn spans(departures: &[Millis], times: &[Millis]) -> Vec<TransferSpan> {
    departures.iter().zip(times).map(|(&start, &ms)| TransferSpan { start, end: start + ms }).collect()
}

/// The timeline of a replica without stages, by the end of each micro-batch's forward and backward.
fn of_computations(ends: &[[Millis; 2]]) -> Timeline {
    let mut timeline = Timeline::default();
    let mut start = Millis::ZERO;
    for (micro_batch, &[forward, backward]) in ends.iter().enumerate() {
        for (compute, end) in [(Compute::Forward(micro_batch), forward), (Compute::Backward(micro_batch), backward)] {
            timeline.spans.push(Span { stage: 0, compute, start, end });
            start = end;
        }
    }
    timeline
}

/// End of the last computation of each stage.
fn stage_ends(timeline: &Timeline, stages: usize) -> Vec<Millis> {
    let mut ends = vec![Millis::ZERO; stages];
    for span in &timeline.spans {
        ends[span.stage] = ends[span.stage].max(span.end);
    }
    ends
}
