//! The independent checker: lists every constraint that a plan violates.
//!
//! It shares no code with construction and search: it derives sequences, caps, groups of ranks and times again from
//! the batch, the profile and the ranks' rates, and the pipeline by its own slow reference simulation.

use std::fmt;

use crate::batch::Batch;
use crate::check::replica_times::{ReplicaTimes, stage_ranks};
use crate::check::transfers::derived_transfers;
use crate::cost::{ClassCost, CostModel, RankMemory};
use crate::pipeline::{finishes, instructions};
use crate::plan::{BoundKind, Candidate, Outcome, Plan, ReplicaPlan};
use crate::spec::{Cluster, MemoryRule};
use crate::timing::Link;
use crate::units::{Millis, Tokens, count};

/// A violated constraint: a stable code, and the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Code of the constraint.
    pub code: &'static str,
    /// The place and the values.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.detail)
    }
}

/// Every violation of `plan` as a plan of `batch` under `cost` and, if transfers count, by `link`; empty if the plan is
/// valid.
pub fn check(plan: &Plan, batch: &Batch, cost: &CostModel, link: Option<&Link>) -> Vec<Violation> {
    let mut report = Report::default();
    check_inputs(plan, batch, cost, &mut report);
    check_sequences(plan, batch, &mut report);
    check_ranks(plan, cost.cluster(), &mut report);
    for (index, replica) in plan.replicas.iter().enumerate() {
        let derived = cost.replica(replica.scheme, &replica.ranks).and_then(|class| {
            let times = ReplicaTimes::of(replica, batch, cost)?;
            Ok((class, times))
        });
        match derived {
            Ok((class, times)) => {
                let room = Room { cap: class.cap(), in_flight: in_flight_micro_batches(replica, class.cap(), cost) };
                check_micro_batches(index, replica, batch, room, &mut report);
                check_replica(index, replica, batch, &class, &times, &mut report);
            }
            Err(error) => report.add("scheme_unusable", format!("replica {index}: {error}")),
        }
    }
    check_times(plan, &mut report);
    check_candidates(plan, &mut report);
    check_transfers(plan, batch, cost, link, &mut report);
    report.violations
}

#[derive(Default)]
struct Report {
    violations: Vec<Violation>,
}

impl Report {
    fn add(&mut self, code: &'static str, detail: String) {
        self.violations.push(Violation { code, detail });
    }

    fn expect(&mut self, holds: bool, code: &'static str, detail: impl FnOnce() -> String) {
        if !holds {
            self.add(code, detail());
        }
    }
}

fn check_inputs(plan: &Plan, batch: &Batch, cost: &CostModel, report: &mut Report) {
    report.expect(plan.batch == *batch, "batch_differs", || "the plan was made for other lengths or targets".into());
    report.expect(plan.cluster == *cost.cluster(), "cluster_differs", || {
        let (planned, own) = (plan.cluster.to_string(), cost.cluster().to_string());
        let other = if planned == own { "ranks of other rates, memory or devices".into() } else { planned };
        format!("planned for {other}, not for {own}")
    });
    report.expect(plan.memory == cost.memory(), "memory_differs", || {
        format!("planned with memory {}, not {}", plan.memory, cost.memory())
    });
    let profile = &cost.profile().name;
    report.expect(plan.profile == *profile, "profile_differs", || {
        format!("planned with '{}', not '{profile}'", plan.profile)
    });
    let schemes: Vec<_> = plan.replicas.iter().map(|replica| replica.scheme).collect();
    report.expect(plan.strategy.schemes() == schemes, "strategy_differs", || {
        let listed: Vec<String> = schemes.iter().map(ToString::to_string).collect();
        format!("strategy {} has replicas {}", plan.strategy, listed.join(", "))
    });
}

fn check_sequences(plan: &Plan, batch: &Batch, report: &mut Report) {
    let mut times = vec![0_usize; batch.len()];
    for id in plan.sequences() {
        match times.get_mut(id) {
            Some(times) => *times += 1,
            None => report.add("sequence_unknown", format!("sequence {id} is not in the batch of {}", batch.len())),
        }
    }
    for (id, &times) in times.iter().enumerate() {
        report.expect(times > 0, "sequence_missing", || format!("sequence {id} is in no micro-batch"));
        report.expect(times < 2, "sequence_repeated", || format!("sequence {id} is in {times} micro-batches"));
    }
}

fn check_ranks(plan: &Plan, cluster: &Cluster, report: &mut Report) {
    let gpus = cluster.gpus();
    let mut user = vec![None; gpus as usize];
    for (index, replica) in plan.replicas.iter().enumerate() {
        let expected = replica.scheme.ranks();
        let given = replica.ranks.len();
        report.expect(given as u64 == expected, "rank_count", || {
            format!("replica {index} has {given} ranks, its scheme {expected}")
        });
        for &rank in &replica.ranks {
            match user.get_mut(rank as usize) {
                None => report.add("rank_unknown", format!("replica {index} uses rank {rank} of {gpus}")),
                Some(Some(other)) => {
                    report.add("rank_shared", format!("rank {rank} is in replicas {other} and {index}"));
                }
                Some(free) => *free = Some(index),
            }
        }
        for (stage, stage_group) in replica.ranks.chunks(replica.scheme.stage_group_ranks() as usize).enumerate() {
            let aligned = is_aligned(stage_group, cluster.gpus_per_node());
            report.expect(aligned, "stage_group_misaligned", || {
                format!("replica {index}, stage {stage}: ranks {stage_group:?}")
            });
        }
    }
}

/// Consecutive ranks, inside one node at a multiple of their number, or on whole nodes.
fn is_aligned(stage_group: &[u32], node: u32) -> bool {
    let consecutive = stage_group.windows(2).all(|pair| pair[1] == pair[0] + 1);
    let (Some(&first), Some(&last)) = (stage_group.first(), stage_group.last()) else { return false };
    let inside_one = first / node == last / node && ((first % node) as usize).is_multiple_of(stage_group.len());
    let whole_nodes = first % node == 0 && (last + 1) % node == 0;
    consecutive && (inside_one || whole_nodes)
}

/// Number of consecutive micro-batches that share as many caps: all that the first stage holds at once, if each stage
/// has room for their tokens in whatever micro-batches they are and recomputes nothing; otherwise one.
fn in_flight_micro_batches(replica: &ReplicaPlan, cap: Tokens, cost: &CostModel) -> usize {
    let (scheme, stages) = (replica.scheme, replica.scheme.stages());
    let Ok(entry) = cost.profile().scheme(scheme) else { return 1 };
    let alike = |list: &[f64]| list.iter().all(|value| value.to_bits() == list[0].to_bits());
    let layers: Vec<f64> = entry.stage_layers.iter().flatten().copied().map(f64::from).collect();
    let same_times = entry.stage_multipliers.as_ref().is_none_or(|list| alike(list));
    let are_known = entry.activation_bytes_per_token.is_known() || (same_times && alike(&layers));
    let together = vec![Tokens(cap.0.saturating_mul(stages as u64)); stages];
    let usual = cost.profile().hardware.memory_bytes;
    let least = |ranks: &[u32]| ranks.iter().map(|&rank| cost.cluster().memory_of(rank).unwrap_or(usual)).min();
    // One byte for rounding: no plan uses the room that this admits beyond the planner's own in-flight limits.
    let fits = |(memory, ranks): (&RankMemory, &[u32])| memory.total() <= count(least(ranks).unwrap_or(usual)) + 1.0;
    let memory = cost.rank_memory(scheme, &together, None);
    let have_room = memory.is_ok_and(|memory| memory.iter().zip(stage_ranks(replica)).all(fits));
    let are_kept = scheme.layer_plan().keeps_activations();
    if cost.memory() == MemoryRule::InFlight && are_kept && are_known && have_room { stages } else { 1 }
}

/// The token limit of a replica's consecutive micro-batches.
#[derive(Clone, Copy)]
struct Room {
    /// Most tokens of one, on average over those in flight together.
    cap: Tokens,
    /// Number of micro-batches in flight together.
    in_flight: usize,
}

/// Checks each run of micro-batches in flight together, and the empty ones.
fn check_micro_batches(index: usize, replica: &ReplicaPlan, batch: &Batch, room: Room, report: &mut Report) {
    let Room { cap: Tokens(cap), in_flight } = room;
    let length = |id: &usize| batch.tokens().get(*id).map_or(0, |tokens| tokens.0);
    let tokens: Vec<u64> = replica.micro_batches.iter().map(|ids| ids.iter().map(length).sum()).collect();
    let mut empty = in_flight - 1;
    for (place, micro_batch) in replica.micro_batches.iter().enumerate() {
        // One less than the number in flight at once separates two that do not fit together; at an end they do nothing.
        empty = if micro_batch.is_empty() { empty + 1 } else { 0 };
        let is_last = place + 1 == tokens.len();
        report.expect(empty == 0 || (empty < in_flight && !is_last), "micro_batch_empty", || {
            format!("replica {index}, micro-batch {place}")
        });
        let first = (place + 1).saturating_sub(in_flight);
        let total: u64 = tokens[first..=place].iter().sum();
        let (code, limit) = if in_flight > 1 {
            ("in_flight_over_cap", cap.saturating_mul(in_flight as u64))
        } else {
            ("micro_batch_over_cap", cap)
        };
        report.expect(total <= limit, code, || match in_flight {
            1 => format!("replica {index}, micro-batch {place}: {total} tokens, the cap is {cap}"),
            _ => format!(
                "replica {index}, micro-batches {first} to {place}: {total} tokens, {in_flight} in a row may hold {limit}"
            ),
        });
    }
}

fn check_replica(
    index: usize,
    replica: &ReplicaPlan,
    batch: &Batch,
    cost: &ClassCost,
    times: &ReplicaTimes,
    report: &mut Report,
) {
    report.expect(replica.context == cost.context(), "context_differs", || {
        format!("replica {index}: {:?}, the profile has {:?}", replica.context, cost.context())
    });
    let (cap, stated) = (cost.cap(), replica.cap_tokens);
    report.expect(cap == stated, "cap_wrong", || format!("replica {index}: stated {}, computed {}", stated.0, cap.0));
    let micro_batches = times.micro_batches.len();
    let mean = times.stages.iter().sum::<f64>() / count(times.stages.len());
    let busy = Millis(times.micro_batches.iter().sum::<f64>() * mean);
    let ends = plain_makespan(times);
    for (code, stated, computed) in
        [("busy_time_wrong", replica.busy_ms, busy), ("replica_time_wrong", replica.predicted_ms, ends)]
    {
        report.expect(stated.is_close(computed), code, || {
            format!("replica {index}: stated {} ms, computed {} ms", stated.0, computed.0)
        });
    }
    let reliability = cost.reliability(replica.reach(batch));
    report.expect(replica.reliability == reliability, "reliability_differs", || {
        format!("replica {index}: {:?}, the profile has {reliability:?}", replica.reliability)
    });
    let stages = replica.scheme.stages();
    let lists: Vec<_> = (0..stages).map(|stage| instructions(stage, stages, micro_batches)).collect();
    report.expect(finishes(&lists), "schedule_hangs", || {
        format!("replica {index}: {stages} stages, {micro_batches} micro-batches")
    });
}

fn check_times(plan: &Plan, report: &mut Report) {
    let slowest = plan.replicas.iter().map(|replica| replica.predicted_ms).max().unwrap_or_default();
    let stated = plan.iteration_ms;
    report.expect(stated.is_close(slowest), "iteration_time_wrong", || {
        format!("stated {} ms, the slowest replica takes {} ms", stated.0, slowest.0)
    });
    let bound = plan.lower_bound.ms;
    let step = plan.step_ms();
    let sound = bound.0 > 0.0 && (bound <= step || bound.is_close(step));
    report.expect(sound, "bound_above_time", || format!("lower bound {} ms, step {} ms", bound.0, step.0));
    // A longer sequence takes at least as long on every replica that admits it, and fewer replicas admit it.
    let BoundKind::Sequence(id) = plan.lower_bound.kind else { return };
    let (own, longest) = (plan.batch.tokens().get(id), plan.batch.longest());
    report.expect(own == Some(&longest.1), "bound_sequence_wrong", || {
        format!("the bound is that of sequence {id}, the longest is sequence {} of {} tokens", longest.0, longest.1.0)
    });
}

/// Checks that the plan's own strategy is among the candidates with the time of its step, and that times are times. A lookahead
/// may choose a strategy that is not the shortest.
fn check_candidates(plan: &Plan, report: &mut Report) {
    let step = plan.step_ms();
    let is_own = |one: &Candidate| {
        one.strategy == plan.strategy && matches!(one.outcome, Outcome::Planned(ms) if ms.is_close(step))
    };
    report.expect(plan.candidates.iter().any(is_own), "candidate_wrong", || {
        format!("none is {} with {} ms", plan.strategy, step.0)
    });
    for Candidate { strategy, outcome } in &plan.candidates {
        let (Outcome::Planned(ms) | Outcome::Pruned(ms)) = outcome else { continue };
        report.expect(ms.0 >= 0.0 && ms.0.is_finite(), "candidate_wrong", || format!("{strategy} takes {} ms", ms.0));
    }
}

/// Checks that transfers are stated if they count, and agree with the checker's own computation.
fn check_transfers(plan: &Plan, batch: &Batch, cost: &CostModel, link: Option<&Link>, report: &mut Report) {
    let (stated, link) = match (plan.transfers, link) {
        (None, None) => return,
        (Some(stated), Some(link)) => (stated, link),
        (stated, _) => {
            let planned = if stated.is_some() { "with transfers, checked without a link" } else { "without transfers" };
            return report.add("transfers_differ", format!("planned {planned}"));
        }
    };
    let derived = match derived_transfers(plan, batch, cost, link) {
        Ok(derived) => derived,
        Err(error) => return report.add("transfers_differ", error.to_string()),
    };
    for (code, stated, derived) in [
        ("step_time_wrong", stated.step_ms, derived.step_ms),
        ("transfer_time_wrong", stated.transfer_ms, derived.transfer_ms),
        ("transfer_time_wrong", stated.alone_ms, derived.alone_ms),
    ] {
        // A difference of two sums is only as exact as the sums.
        let is_close = (stated.0 - derived.0).abs() <= 1e-9 * derived.0.max(plan.iteration_ms.0).max(1.0);
        report.expect(is_close, code, || format!("stated {} ms, computed {} ms", stated.0, derived.0));
    }
    let (stated, derived) = (stated.moved_bytes, derived.moved_bytes);
    report.expect(stated == derived, "moved_bytes_wrong", || format!("stated {stated}, computed {derived}"));
}

/// The 1F1B makespan as a fixed point: an operation starts when its stage is free and its input is there; ends are
/// raised, round after round, until nothing changes.
fn plain_makespan(times: &ReplicaTimes) -> Millis {
    let ReplicaTimes { micro_batches: times, stages: multipliers, forward_share } = times;
    let (stages, v) = (multipliers.len(), times.len());
    let mut ends = vec![vec![[0.0_f64; 2]; v]; stages];
    loop {
        let before = ends.clone();
        for stage in 0..stages {
            let ahead = (stages - 1 - stage).min(v);
            let mut free = 0.0_f64;
            for slot in 0..v + ahead {
                let forward = (slot < v).then_some((slot, 0));
                let backward = (slot >= ahead).then(|| (slot - ahead, 1));
                for (micro_batch, pass) in forward.into_iter().chain(backward) {
                    let input = match pass {
                        0 if stage > 0 => ends[stage - 1][micro_batch][0],
                        1 if stage + 1 < stages => ends[stage + 1][micro_batch][1],
                        _ => 0.0,
                    };
                    let share = if pass == 0 { *forward_share } else { 1.0 - forward_share };
                    free = free.max(input) + times[micro_batch] * multipliers[stage] * share;
                    ends[stage][micro_batch][pass] = free;
                }
            }
        }
        if ends == before {
            return Millis(ends.iter().flatten().flatten().copied().fold(0.0, f64::max));
        }
    }
}
