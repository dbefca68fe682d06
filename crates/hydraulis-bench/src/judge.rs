//! One judge for all methods: the core's simulated time and the core's checker.
//!
//! A baseline's decision is written into the frame of a plan that the core creates for the same strategy, so that the
//! core's checker judges it whole: each sequence once, caps, ranks, times, schedules. The frame has the core's lower
//! bound for the strategy, which does not depend on the baseline: a baseline below it would prove the bound wrong. With
//! a link, its replicas without a pipeline have their longest micro-batches at both ends, in the better of two orders;
//! nothing else changes. One check is made here, since no plan has phases: that the phases contain each sequence of the batch
//! once.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use hydraulis_core::Millis;
use hydraulis_core::batch::Batch;
use hydraulis_core::check::{Violation, check};
use hydraulis_core::construct::pack::longest_at_both_ends;
use hydraulis_core::cost::CostModel;
use hydraulis_core::pipeline::{MakespanBuffers, makespan};
use hydraulis_core::plan::{Candidate, Outcome, Plan, ReplicaPlan};
use hydraulis_core::search::Planner;
use hydraulis_core::spec::Strategy;
use hydraulis_core::timing;

use crate::baseline::{Decision, Phase, part};
use crate::error::Result;
use crate::link::{Transfers, of_phases};
use crate::numbers::count;
use crate::planner_under_test::Answer;

/// Judges answers under one cost model.
#[derive(Clone, Debug)]
pub struct Judge<'a> {
    cost: &'a CostModel,
    link: Option<&'a timing::Link>,
    /// One planner for each strategy seen, which creates the frames.
    planners: BTreeMap<Strategy, Planner>,
    buffers: MakespanBuffers,
}

/// The judge's result for an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The strategy; strategies that run one after another are joined by `;`.
    pub strategy: String,
    /// The simulated time of the iteration.
    pub iteration_ms: Millis,
    /// The lower bound over the planner's strategies, and the gap to it of the step, or of the iteration without a
    /// link; none for a baseline.
    pub bound: Option<(Millis, f64)>,
    /// Number of micro-batches.
    pub micro_batches: usize,
    /// The transfers' times, with a link.
    pub transfers: Option<Transfers>,
    /// Every promise that is broken.
    pub violations: Vec<Violation>,
}

impl Verdict {
    /// `ok`, or the codes of all broken promises joined by `,`.
    pub fn status(&self) -> String {
        let mut codes: Vec<&str> = self.violations.iter().map(|violation| violation.code).collect();
        codes.dedup();
        if codes.is_empty() { "ok".into() } else { codes.join(",") }
    }
}

impl<'a> Judge<'a> {
    /// Creates a judge for these costs, and for this link if transfers count.
    pub fn new(cost: &'a CostModel, link: Option<&'a timing::Link>) -> Judge<'a> {
        Judge { cost, link, planners: BTreeMap::new(), buffers: MakespanBuffers::default() }
    }

    /// Judges an answer to a batch.
    pub fn judge(&mut self, answer: &Answer, batch: &Batch) -> Result<Verdict> {
        match answer {
            Answer::Plan(plan) => Ok(Verdict {
                strategy: plan.strategy.to_string(),
                iteration_ms: plan.iteration_ms,
                bound: Some((plan.lower_bound.ms, plan.gap())),
                micro_batches: plan.replicas.iter().map(|replica| replica.micro_batches.len()).sum(),
                transfers: plan
                    .transfers
                    .map(|transfers| Transfers { transfer_ms: transfers.transfer_ms, alone_ms: transfers.alone_ms }),
                violations: check(plan, batch, self.cost, self.link),
            }),
            Answer::Decision(decision) => self.judge_decision(decision, batch),
        }
    }

    fn judge_decision(&mut self, decision: &Decision, batch: &Batch) -> Result<Verdict> {
        let mut violations = unshared(decision, batch);
        let mut iteration_ms = Millis::ZERO;
        let mut phases = Vec::new();
        // Unknown ids have no time.
        if violations.is_empty() {
            for phase in &decision.phases {
                let plan = self.framed(phase, batch)?;
                iteration_ms += plan.iteration_ms;
                violations.extend(check(&plan, &plan.batch, self.cost, None));
                phases.push(plan);
            }
        }
        let transfers = self.link.map(|link| self.transfers(phases, link)).transpose()?;
        Ok(Verdict {
            strategy: decision.strategy(),
            iteration_ms,
            bound: None,
            micro_batches: decision.micro_batches(),
            transfers,
            violations,
        })
    }

    /// The transfers in the better of two orders: replicas without a pipeline run their longest micro-batch first, or last.
    fn transfers(&self, mut phases: Vec<Plan>, link: &timing::Link) -> Result<Transfers> {
        let longest_first = of_phases(&phases, self.cost, link)?;
        let replicas = phases.iter_mut().flat_map(|plan| &mut plan.replicas);
        for replica in replicas.filter(|replica| replica.scheme.pp() == 1) {
            if let [first, .., last] = replica.micro_batches.as_mut_slice() {
                std::mem::swap(first, last);
            }
        }
        let longest_last = of_phases(&phases, self.cost, link)?;
        Ok(if longest_last.transfer_ms < longest_first.transfer_ms { longest_last } else { longest_first })
    }

    /// The plan of a phase for the phase's sequences.
    fn framed(&mut self, phase: &Phase, batch: &Batch) -> Result<Plan> {
        let mut ids: Vec<usize> = phase.work.iter().flatten().flatten().copied().collect();
        ids.sort_unstable();
        let part = part(batch, &ids)?;
        let planner = match self.planners.entry(phase.strategy.clone()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(free) => {
                let strategies = Some(vec![phase.strategy.clone()]);
                let planner = Planner::new(self.cost.profile().clone(), self.cost.cluster().clone(), strategies)?;
                free.insert(planner.with_memory(self.cost.memory()))
            }
        };
        let mut plan = planner.plan(&part)?;
        let local = |id: &usize| ids.partition_point(|other| other < id);
        for (replica, work) in plan.replicas.iter_mut().zip(&phase.work) {
            replica.micro_batches = work.iter().map(|micro_batch| micro_batch.iter().map(local).collect()).collect();
            if self.link.is_some() && replica.scheme.pp() == 1 {
                let cost = self.cost.scheme(replica.scheme)?;
                let time = |ids: &Vec<usize>| cost.micro_batch_ms(ids.iter().map(|&id| part.tokens()[id]));
                longest_at_both_ends(&mut replica.micro_batches, time);
            }
            self.time(replica, &part)?;
        }
        plan.iteration_ms = plan.replicas.iter().map(|replica| replica.predicted_ms).max().unwrap_or_default();
        plan.candidates =
            vec![Candidate { strategy: plan.strategy.clone(), outcome: Outcome::Planned(plan.iteration_ms) }];
        Ok(plan)
    }

    /// Simulates a replica's micro-batches.
    fn time(&mut self, replica: &mut ReplicaPlan, batch: &Batch) -> Result<()> {
        let cost = self.cost.scheme(replica.scheme)?;
        let times = cost.micro_batch_times(&replica.micro_batches, batch);
        let stages = cost.stage_multipliers();
        replica.busy_ms = times.iter().copied().sum::<Millis>() * (stages.iter().sum::<f64>() / count(stages.len()));
        replica.predicted_ms = makespan(&times, stages, cost.forward_share(), &mut self.buffers);
        Ok(())
    }
}

/// Sequences that are not in exactly one micro-batch of one phase, and phases without one work list for each replica.
fn unshared(decision: &Decision, batch: &Batch) -> Vec<Violation> {
    let mut times = vec![0_usize; batch.len()];
    let mut violations = Vec::new();
    for phase in &decision.phases {
        let (given, replicas) = (phase.work.len(), phase.strategy.schemes().len());
        if given != replicas {
            violations.push(violation("work_differs", format!("{given} lists for {replicas} replicas")));
        }
        for &id in phase.work.iter().flatten().flatten() {
            match times.get_mut(id) {
                Some(times) => *times += 1,
                None => violations.push(violation("sequence_unknown", format!("sequence {id} is not in the batch"))),
            }
        }
    }
    for (id, &times) in times.iter().enumerate() {
        match times {
            0 => violations.push(violation("sequence_missing", format!("sequence {id} is in no micro-batch"))),
            1 => {}
            _ => violations.push(violation("sequence_repeated", format!("sequence {id} is run {times} times"))),
        }
    }
    violations
}

fn violation(code: &'static str, detail: String) -> Violation {
    Violation { code, detail }
}
