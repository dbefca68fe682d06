//! Lists of strategies, proposed from some batches and tried on others.

use std::io;
use std::time::Instant;

use hydraulis_bench::Result;
use hydraulis_core::batch::Batch;
use hydraulis_core::propose::{PaperGrid, Request, paper_list, propose};
use hydraulis_core::search::Planner;
use hydraulis_core::spec::Strategy;
use hydraulis_core::{Millis, Tokens};

use crate::arguments::ProposeArguments;
use crate::paper::histogram;
use crate::say;

/// The grid of the paper's dynamic program, as its artifact ships it for this model.
const GPU_STEP: u32 = 4;
const TOKEN_STEP: Tokens = Tokens(1_024);

pub(crate) fn run(arguments: &ProposeArguments) -> Result<()> {
    let search = arguments.workload.search()?;
    let batches = arguments.workload.batches()?;
    let (learnt, tried) = batches.split_at(batches.len() / 2);
    let free = mean(&search, tried)?;
    row("list", "strategies", "seconds", "learnt ms", "tried ms", "over search");
    row("search", "any", "", "", &format!("{:.1}", free.0), "");
    for &count in &arguments.counts {
        let start = Instant::now();
        let proposal =
            propose(&search, &Request { batches: learnt, count, context: None }, &|| Ok(()), &mut |_| Ok(()))?;
        let seconds = start.elapsed().as_secs_f64();
        let list: Vec<Strategy> = proposal.strategies.iter().map(|one| one.strategy.clone()).collect();
        let name = format!("proposal of {} ({} times)", proposal.candidates, proposal.timed);
        tried_row(&name, seconds, Some(proposal.expected_ms()), list, (&search, tried, free))?;
    }
    let start = Instant::now();
    let list = paper(&search, learnt)?;
    let seconds = start.elapsed().as_secs_f64();
    tried_row("paper", seconds, None, list, (&search, tried, free))?;
    let own = Planner::new(search.cost().profile().clone(), search.cost().cluster(), None)?;
    tried_row("profile", 0.0, None, own.strategies().to_vec(), (&search, tried, free))
}

/// The list of the paper's dynamic program for all sequences learnt from.
fn paper(search: &Planner, batches: &[Batch]) -> Result<Vec<Strategy>> {
    let data = histogram(batches)?;
    let grid = PaperGrid { gpu_step: GPU_STEP, token_step: TOKEN_STEP, context: data.longest() };
    Ok(paper_list(search.cost(), &data, grid, &|| Ok(()))?.into_iter().map(|one| one.strategy).collect())
}

fn tried_row(
    name: &str,
    seconds: f64,
    learnt: Option<Millis>,
    list: Vec<Strategy>,
    (search, tried, free): (&Planner, &[Batch], Millis),
) -> Result<()> {
    let strategies = list.len().to_string();
    let planner = Planner::new(search.cost().profile().clone(), search.cost().cluster(), Some(list))?;
    let ms = mean(&planner, tried)?;
    let learnt = learnt.map(|ms| format!("{:.1}", ms.0)).unwrap_or_default();
    let over = format!("{:+.2} %", 100.0 * (ms.0 / free.0 - 1.0));
    row(name, &strategies, &format!("{seconds:.2}"), &learnt, &format!("{:.1}", ms.0), &over);
    Ok(())
}

/// The mean iteration.
fn mean(planner: &Planner, batches: &[Batch]) -> Result<Millis> {
    let times = batches.iter().map(|batch| Ok(planner.plan(batch)?.iteration_ms)).collect::<Result<Vec<_>>>()?;
    let batches = Tokens(batches.len() as u64).as_f64();
    Ok(times.into_iter().sum::<Millis>() * (1.0 / batches))
}

fn row(name: &str, strategies: &str, seconds: &str, learnt: &str, tried: &str, over: &str) {
    say(&mut io::stdout(), &format!("{name:<32} {strategies:>10} {seconds:>8} {learnt:>10} {tried:>10} {over:>12}"));
}
