//! Compares a run with a limited number of strategies to an unlimited one.

use std::collections::BTreeSet;
use std::io;

use hydraulis_bench::Result;
use hydraulis_bench::planner_under_test::PlannerUnderTest;
use hydraulis_bench::record::Record;

use crate::arguments::LimitArguments;
use crate::records::{mean, records};
use crate::say;

pub(crate) fn run(arguments: &LimitArguments) -> Result<()> {
    let search = arguments.workload.search()?;
    let batches = arguments.workload.batches()?;
    let limited =
        arguments.limits.iter().map(|&most| PlannerUnderTest::with_limit(&most.to_string(), search.clone(), most));
    let planners = [PlannerUnderTest::from_planner("none", search.clone())].into_iter().chain(limited).collect();
    let records = records(search.cost(), planners, &batches)?;
    row("limit", "used", "mean ms", "over search", "second half", "plan ms");
    for run in &records {
        print(run, &records[0]);
    }
    Ok(())
}

fn print(run: &[Record], free: &[Record]) {
    let half = run.len() / 2;
    let iteration = |records: &[Record]| mean(records, |record| record.iteration_ms);
    let over = |first: usize| format!("{:+.2} %", 100.0 * (iteration(&run[first..]) / iteration(&free[first..]) - 1.0));
    let used: BTreeSet<&str> = run.iter().map(|record| record.strategy.as_str()).collect();
    let plan_ms = mean(run, |record| record.plan_ms);
    row(
        &run[0].planner,
        &used.len().to_string(),
        &format!("{:.1}", iteration(run)),
        &over(0),
        &over(half),
        &format!("{plan_ms:.1}"),
    );
}

fn row(limit: &str, used: &str, mean: &str, over: &str, half: &str, plan: &str) {
    say(&mut io::stdout(), &format!("{limit:>6} {used:>6} {mean:>10} {over:>12} {half:>12} {plan:>9}"));
}
