//! A run whose strategies are limited in number, against one that is free.

use std::io;
use std::time::Instant;

use hydraulis_bench::Result;
use hydraulis_core::batch::Batch;
use hydraulis_core::plan::Plan;
use hydraulis_core::search::RunLimit;
use hydraulis_core::spec::Strategy;
use hydraulis_core::{Millis, Tokens};

use crate::arguments::LimitArguments;
use crate::say;

pub(crate) fn run(arguments: &LimitArguments) -> Result<()> {
    let search = arguments.workload.search()?;
    let batches = arguments.workload.batches()?;
    let free = Run::of(&batches, |batch, _| search.plan(batch))?;
    row("limit", "used", "mean ms", "over search", "second half", "plan ms");
    free.print("none", &free);
    for &limit in &arguments.limits {
        let limited = |batch: &Batch, used: &[Strategy]| search.plan_limited(batch, RunLimit { most: limit, used });
        Run::of(&batches, limited)?.print(&limit.to_string(), &free);
    }
    Ok(())
}

/// What came of planning all batches in turn.
struct Run {
    times: Vec<Millis>,
    used: Vec<Strategy>,
    plan_ms: f64,
}

impl Run {
    fn of(batches: &[Batch], plan: impl Fn(&Batch, &[Strategy]) -> hydraulis_core::Result<Plan>) -> Result<Run> {
        let mut run = Run { times: Vec::new(), used: Vec::new(), plan_ms: 0.0 };
        let start = Instant::now();
        for batch in batches {
            let plan = plan(batch, &run.used)?;
            run.times.push(plan.iteration_ms);
            if !run.used.contains(&plan.strategy) {
                run.used.push(plan.strategy);
            }
        }
        run.plan_ms = start.elapsed().as_secs_f64() * 1e3 / count(batches.len());
        Ok(run)
    }

    /// The mean of the iterations from `first` on.
    fn mean(&self, first: usize) -> f64 {
        self.times[first..].iter().copied().sum::<Millis>().0 / count(self.times.len() - first)
    }

    fn print(&self, name: &str, free: &Run) {
        let half = self.times.len() / 2;
        let over = |first| format!("{:+.2} %", 100.0 * (self.mean(first) / free.mean(first) - 1.0));
        let (used, mean, plan_ms) =
            (self.used.len().to_string(), format!("{:.1}", self.mean(0)), format!("{:.1}", self.plan_ms));
        row(name, &used, &mean, &over(0), &over(half), &plan_ms);
    }
}

fn count(n: usize) -> f64 {
    Tokens(n as u64).as_f64()
}

fn row(limit: &str, used: &str, mean: &str, over: &str, half: &str, plan: &str) {
    say(&mut io::stdout(), &format!("{limit:>6} {used:>6} {mean:>10} {over:>12} {half:>12} {plan:>9}"));
}
