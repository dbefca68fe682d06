//! Compares a lookahead over several batches to plans of single batches.

use std::io;
use std::num::NonZeroUsize;
use std::time::Instant;

use hydraulis_bench::link::link;
use hydraulis_bench::{Error, Result};
use hydraulis_core::batch::Batch;
use hydraulis_core::lookahead::{Lookahead, LookaheadPlan, Member, Step, check_lookahead, plan_lookahead};
use hydraulis_core::search::Planner;
use hydraulis_core::spec::Strategy;
use hydraulis_core::{Millis, Tokens};

use crate::arguments::LookaheadArguments;
use crate::say;

pub(crate) fn run(arguments: &LookaheadArguments) -> Result<()> {
    let search = arguments.workload.search()?;
    let batches = arguments.workload.batches()?;
    let search = match arguments.link {
        Some(rates) => {
            let link = link(rates, search.cost())?;
            search.with_link(link)?
        }
        None => search,
    };
    let switch = Millis(arguments.switch_ms);
    say(
        &mut io::stdout(),
        "lookahead  delay   step ms  to alone  iteration ms  switches  transfer ms  moved  bound gap  plan ms",
    );
    let alone = Run::alone(&search, &batches, switch)?;
    alone.print("alone", 0, &alone);
    for &size in &arguments.lookaheads {
        for &max_delay in &arguments.delays {
            // A single batch has no other batch to exchange sequences with.
            if size.get() > 1 || max_delay == 0 {
                Run::of(&search, &batches, size, (switch, max_delay))?.print(&size.to_string(), max_delay, &alone);
            }
        }
    }
    Ok(())
}

/// The sums over the plans of all batches.
#[derive(Default)]
struct Run {
    step_ms: Millis,
    iteration_ms: Millis,
    transfer_ms: Millis,
    bound_ms: Millis,
    switches: usize,
    moved: usize,
    batches: usize,
    sequences: usize,
    plan_ms: f64,
}

impl Run {
    /// Plans each batch by itself; the times of changes and transfers are added afterwards.
    fn alone(planner: &Planner, batches: &[Batch], switch: Millis) -> Result<Run> {
        let mut run = Run::default();
        let mut previous: Option<Strategy> = None;
        for batch in batches {
            let start = Instant::now();
            let plan = planner.plan(batch)?;
            run.plan_ms += start.elapsed().as_secs_f64() * 1e3;
            let is_change = previous.as_ref().is_some_and(|previous| *previous != plan.strategy);
            let switch_ms = if is_change { switch } else { Millis::ZERO };
            let members = (0..batch.len()).map(|sequence| Member { batch: 0, sequence }).collect();
            let counted = LookaheadPlan { steps: vec![Step { plan, members, switch_ms }] };
            previous = run.add(&counted, previous.as_ref());
        }
        Ok(run)
    }

    /// Plans the batches in consecutive lookaheads of `size` batches.
    fn of(
        planner: &Planner,
        batches: &[Batch],
        size: NonZeroUsize,
        (switch, max_delay): (Millis, usize),
    ) -> Result<Run> {
        let mut run = Run::default();
        let mut previous: Option<Strategy> = None;
        for batches in batches.chunks(size.get()) {
            let lookahead = Lookahead { batches, switch, previous: previous.as_ref(), max_delay };
            let start = Instant::now();
            let plan = plan_lookahead(planner, &lookahead, &|| Ok(()), &mut |_| Ok(()))?;
            run.plan_ms += start.elapsed().as_secs_f64() * 1e3;
            if let Some(broken) = check_lookahead(&plan, &lookahead, planner.cost(), planner.link()).first() {
                return Err(Error::LookaheadBroken { code: broken.code, detail: broken.detail.clone() });
            }
            previous = run.add(&plan, previous.as_ref());
        }
        Ok(run)
    }

    /// Adds a lookahead plan; returns the strategy of its last iteration.
    fn add(&mut self, plan: &LookaheadPlan, previous: Option<&Strategy>) -> Option<Strategy> {
        self.step_ms += plan.step_ms();
        self.iteration_ms += plan.iteration_ms();
        self.transfer_ms += plan.transfer_ms();
        self.bound_ms += plan.lower_bound_ms();
        self.moved += plan.moved();
        self.batches += plan.steps.len();
        self.sequences += plan.steps.iter().map(|step| step.members.len()).sum::<usize>();
        let chain: Vec<&Strategy> =
            previous.into_iter().chain(plan.steps.iter().map(|step| &step.plan.strategy)).collect();
        self.switches += chain.windows(2).filter(|pair| pair[0] != pair[1]).count();
        plan.steps.last().map(|step| step.plan.strategy.clone())
    }

    fn print(&self, name: &str, max_delay: usize, alone: &Run) {
        let mean = |ms: Millis| ms.0 / count(self.batches);
        let ratio = 100.0 * (self.step_ms.0 / alone.step_ms.0 - 1.0);
        let moved = 100.0 * count(self.moved) / count(self.sequences);
        let gap = 100.0 * (self.iteration_ms.0 / self.bound_ms.0 - 1.0);
        say(
            &mut io::stdout(),
            &format!(
                "{name:>6} {max_delay:>6} {:>9.1} {ratio:>+7.2} % {:>13.1} {:>9} {:>12.1} {moved:>4.1} % {gap:>8.2} % {:>8.1}",
                mean(self.step_ms),
                mean(self.iteration_ms),
                self.switches,
                mean(self.transfer_ms),
                self.plan_ms / count(self.batches),
            ),
        );
    }
}

fn count(n: usize) -> f64 {
    Tokens(n as u64).as_f64()
}
