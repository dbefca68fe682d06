//! One iteration of a plan, stage by stage.

use crate::cost::{CostModel, RankMemory};
use crate::error::Result;
use crate::plan::{Plan, ReplicaPlan, predicted_times};
use crate::schedule::{StageTimes, Timeline, simulate_over};
use crate::simulation::held::held;
use crate::simulation::{Conditions, GpuTime, Held};
use crate::units::{Millis, Tokens, count};

/// What all replicas do in one iteration.
#[derive(Clone, Debug, PartialEq)]
pub struct Iteration {
    /// The replicas, in the strategy's order.
    pub replicas: Vec<ReplicaRun>,
    /// When the last of them ends.
    pub end: Millis,
    /// Where the time of all ranks of the cluster goes.
    pub gpu_time: GpuTime,
}

/// What one replica does.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaRun {
    /// Its computations.
    pub timeline: Timeline,
    /// Its stages.
    pub stages: Vec<StageRun>,
    /// When its last backward ends.
    pub end: Millis,
}

/// What one stage does, and holds.
#[derive(Clone, Debug, PartialEq)]
pub struct StageRun {
    /// How long it computes, at the pace of its slowest rank.
    pub busy: Millis,
    /// How long it waits for other stages, until its replica's end.
    pub bubble: Millis,
    /// The tokens it holds, from each moment on.
    pub held: Vec<Held>,
    /// Most tokens at once.
    pub peak: Tokens,
    /// What a rank's memory holds at that moment, by the profile's figures for the fullest stage.
    pub memory: RankMemory,
}

/// Runs a plan's instruction lists under these conditions.
///
/// Without slow ranks and wires the timelines are those that the plan was predicted with. Refused where the profile does
/// not have the plan's schemes.
pub fn simulate_iteration(plan: &Plan, cost: &CostModel, conditions: &Conditions) -> Result<Iteration> {
    let run = |replica| Simulation { plan, cost, conditions, replica }.run();
    let replicas = plan.replicas.iter().map(run).collect::<Result<Vec<_>>>()?;
    let end = replicas.iter().map(|replica| replica.end).max().unwrap_or_default();
    let mut gpu_time = GpuTime::default();
    for (replica, planned) in replicas.iter().zip(&plan.replicas) {
        gpu_time += spent(replica, planned, end, conditions);
    }
    let placed: usize = plan.replicas.iter().map(|replica| replica.ranks.len()).sum();
    gpu_time.unused = end * (f64::from(plan.cluster.gpus()) - count(placed));
    Ok(Iteration { replicas, end, gpu_time })
}

/// One replica's part of the simulation.
struct Simulation<'a> {
    plan: &'a Plan,
    cost: &'a CostModel,
    conditions: &'a Conditions,
    replica: &'a ReplicaPlan,
}

impl Simulation<'_> {
    fn run(&self) -> Result<ReplicaRun> {
        let tokens = self.tokens();
        let times = predicted_times(self.plan, self.replica, self.cost)?;
        let times: Vec<StageTimes> =
            times.into_iter().zip(stages(self.replica)).map(|(t, r)| self.slowed(t, r)).collect();
        let timeline = simulate_over(&times, &self.travel(&tokens));
        let end = timeline.makespan();
        let stages = (0..times.len()).map(|stage| self.stage(stage, &timeline, &tokens, end));
        let stages = stages.collect::<Result<Vec<_>>>()?;
        Ok(ReplicaRun { timeline, stages, end })
    }

    /// The tokens of each micro-batch.
    fn tokens(&self) -> Vec<Tokens> {
        let of = |ids: &Vec<usize>| ids.iter().map(|&id| self.plan.batch.tokens()[id]).sum();
        self.replica.micro_batches.iter().map(of).collect()
    }

    fn slowed(&self, mut times: StageTimes, ranks: &[u32]) -> StageTimes {
        let factor = self.conditions.slowdowns.of_stage(ranks);
        for time in times.forward.iter_mut().chain(&mut times.backward) {
            *time = *time * factor;
        }
        times
    }

    fn travel(&self, tokens: &[Tokens]) -> Vec<Vec<Millis>> {
        let Some(network) = &self.conditions.network else { return Vec::new() };
        let stages: Vec<&[u32]> = stages(self.replica).collect();
        let boundary = |pair: &[&[u32]]| {
            tokens.iter().map(|&tokens| network.travel_ms(self.plan.cluster, tokens, pair[0], pair[1])).collect()
        };
        stages.windows(2).map(boundary).collect()
    }

    fn stage(&self, stage: usize, timeline: &Timeline, tokens: &[Tokens], end: Millis) -> Result<StageRun> {
        let spans = || timeline.spans.iter().filter(|span| span.stage == stage);
        let busy: Millis = spans().map(|span| span.end - span.start).sum();
        let held = held(spans(), tokens);
        let peak = held.iter().map(|step| step.tokens).max().unwrap_or_default();
        let memory = self.cost.rank_memory(self.replica.scheme, peak)?;
        // A sum of differences may be a rounding above the end.
        Ok(StageRun { busy, bubble: (end - busy).max(Millis::ZERO), held, peak, memory })
    }
}

/// The ranks of each stage.
fn stages(replica: &ReplicaPlan) -> impl Iterator<Item = &[u32]> {
    replica.ranks.chunks(replica.ranks.len() / replica.scheme.stages())
}

/// Where the time of one replica's ranks goes, in an iteration that ends at `end`.
fn spent(run: &ReplicaRun, replica: &ReplicaPlan, end: Millis, conditions: &Conditions) -> GpuTime {
    let mut time = GpuTime::default();
    for (stage, ranks) in run.stages.iter().zip(stages(replica)) {
        let slowest = conditions.slowdowns.of_stage(ranks);
        for &rank in ranks {
            let own = stage.busy * (conditions.slowdowns.of(rank) / slowest);
            time.compute += own;
            time.slower_rank += stage.busy - own;
            time.bubble += stage.bubble;
            time.slower_replica += end - run.end;
        }
    }
    time
}
