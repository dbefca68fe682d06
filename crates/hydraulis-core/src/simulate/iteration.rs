//! The simulation of one iteration of a plan, stage by stage.

use crate::cost::{CostModel, RankMemory};
use crate::error::{Error, Result};
use crate::pipeline::{Timeline, simulate_over};
use crate::plan::{Plan, ReplicaPlan};
use crate::simulate::memory::saved;
use crate::simulate::network::Crossings;
use crate::simulate::workload::{ReplicaWorkload, boundaries, stages};
use crate::simulate::{Conditions, GpuTime, SavedTokens, StepRun};
use crate::units::{Millis, Tokens, count};

/// The simulated work of all replicas in one iteration.
#[derive(Clone, Debug, PartialEq)]
pub struct Iteration {
    /// The replicas, in the strategy's order.
    pub replicas: Vec<ReplicaRun>,
    /// End of the last replica.
    pub end: Millis,
    /// The iteration with its transfers, if the conditions have links for them.
    pub step: Option<StepRun>,
    /// Time of all ranks of the cluster by use, including transfers.
    pub gpu_time: GpuTime,
}

impl Iteration {
    /// The time at which the owners have all gradients. Without links, the end of the last replica.
    pub fn step_end(&self) -> Millis {
        self.step.as_ref().map_or(self.end, |step| step.end)
    }
}

/// The simulated work of one replica.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaRun {
    /// Computations of the replica.
    pub timeline: Timeline,
    /// Stages of the replica.
    pub stages: Vec<StageRun>,
    /// End of the replica's last backward.
    pub end: Millis,
}

/// The simulated work and memory of one stage.
#[derive(Clone, Debug, PartialEq)]
pub struct StageRun {
    /// Compute time of the stage, at the speed of its slowest rank.
    pub busy: Millis,
    /// Time that the stage waits for other stages, until its replica's end.
    pub bubble: Millis,
    /// Tokens whose activations the stage saves for backward, from each change on.
    pub saved: Vec<SavedTokens>,
    /// Largest number of these tokens at once.
    pub peak: Tokens,
    /// Memory of a rank at the moment of this peak, from the profile's figures for the stage. A profile without figures
    /// for each stage has those of the fullest stage.
    pub memory: RankMemory,
}

/// Runs a plan's instruction lists under these conditions.
///
/// Without slow ranks and wires, the timelines are those of the plan's prediction, and with the plan's link the step
/// ends at the time in the plan. The function refuses a profile without the plan's schemes, and a link whose model has
/// too few layers for them.
pub fn simulate_iteration(plan: &Plan, cost: &CostModel, conditions: &Conditions) -> Result<Iteration> {
    if plan.cluster != *cost.cluster() {
        let [plan, planner] = [&plan.cluster, cost.cluster()].map(|cluster| Box::new(cluster.clone()));
        return Err(Error::OtherCluster { plan, planner });
    }
    let at_work = plan.replicas.iter().filter(|replica| !replica.micro_batches.is_empty());
    let crossings = Crossings::new(&plan.cluster, at_work.flat_map(boundaries));
    let work = |replica| ReplicaWorkload::new(plan, cost, conditions, &crossings, replica);
    let workloads = plan.replicas.iter().map(work).collect::<Result<Vec<_>>>()?;
    let replicas = workloads.iter().map(|workload| run(workload, cost)).collect::<Result<Vec<_>>>()?;
    let end = replicas.iter().map(|replica| replica.end).max().unwrap_or_default();
    let mut gpu_time = GpuTime::default();
    for (replica, planned) in replicas.iter().zip(&plan.replicas) {
        gpu_time += spent(replica, planned, end, |rank| conditions.slowdowns.of(rank) / plan.cluster.rate(rank));
    }
    let placed: usize = plan.replicas.iter().map(|replica| replica.ranks.len()).sum();
    let gpus = f64::from(plan.cluster.gpus());
    gpu_time.unused = end * (gpus - count(placed));
    let step = conditions.link.as_ref().map(|link| StepRun::new(plan, cost, link, &workloads, end)).transpose()?;
    gpu_time.transfers = step.as_ref().map_or(Millis::ZERO, |step| step.transfer) * gpus;
    Ok(Iteration { replicas, end, step, gpu_time })
}

fn run(workload: &ReplicaWorkload<'_>, cost: &CostModel) -> Result<ReplicaRun> {
    let timeline = simulate_over(&workload.times, &workload.travel);
    let end = timeline.makespan();
    let of_stage = |stage| saved(timeline.spans.iter().filter(|span| span.stage == stage), &workload.tokens);
    let saved: Vec<Vec<SavedTokens>> = (0..workload.times.len()).map(of_stage).collect();
    let most = |saved: &Vec<SavedTokens>| saved.iter().map(|step| step.tokens).max().unwrap_or_default();
    let peaks: Vec<Tokens> = saved.iter().map(most).collect();
    let memory = cost.rank_memory(workload.replica.scheme, &peaks, workload.tokens.iter().copied().max())?;
    let by_stage = saved.into_iter().zip(peaks).zip(memory).enumerate();
    let stages = by_stage
        .map(|(stage, ((saved, peak), memory))| {
            let spans = timeline.spans.iter().filter(|span| span.stage == stage);
            let busy: Millis = spans.map(|span| span.end - span.start).sum();
            // A sum of differences may exceed the end by a rounding error.
            StageRun { busy, bubble: (end - busy).max(Millis::ZERO), saved, peak, memory }
        })
        .collect();
    Ok(ReplicaRun { timeline, stages, end })
}

/// The time of one replica's ranks by use, in an iteration that ends at `end`; `factor` is the time of a rank relative to
/// the profile.
fn spent(run: &ReplicaRun, replica: &ReplicaPlan, end: Millis, factor: impl Fn(u32) -> f64) -> GpuTime {
    let mut time = GpuTime::default();
    for (stage, ranks) in run.stages.iter().zip(stages(replica)) {
        let slowest = ranks.iter().map(|&rank| factor(rank)).fold(0.0, f64::max);
        for &rank in ranks {
            let own = stage.busy * (factor(rank) / slowest);
            time.compute += own;
            time.slower_rank += stage.busy - own;
            time.bubble += stage.bubble;
            time.slower_replica += end - run.end;
        }
    }
    time
}
