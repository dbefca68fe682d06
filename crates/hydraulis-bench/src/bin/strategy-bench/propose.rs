//! Proposes lists of strategies from some batches and tries them on others.

use std::io;
use std::num::NonZeroUsize;
use std::time::Instant;

use hydraulis_bench::Result;
use hydraulis_bench::baseline::{PaperGrid, paper_list};
use hydraulis_bench::planner_under_test::PlannerUnderTest;
use hydraulis_bench::record::Record;
use hydraulis_core::batch::Batch;
use hydraulis_core::propose::{Request, propose};
use hydraulis_core::search::Planner;
use hydraulis_core::spec::Strategy;
use hydraulis_core::{Millis, Tokens};

use crate::arguments::ProposeArguments;
use crate::paper::histogram;
use crate::records::{mean, records};
use crate::say;

/// The grid of the paper's dynamic program in its artifact's configuration for this model.
const GPU_STEP: u32 = 4;
const TOKEN_STEP: Tokens = Tokens(1_024);

pub(crate) fn run(arguments: &ProposeArguments) -> Result<()> {
    let search = arguments.workload.search()?;
    let batches = arguments.workload.batches()?;
    let (learnt, tried) = batches.split_at(batches.len() / 2);
    let lists = lists(&search, learnt, &arguments.counts)?;
    let over = |list: &List| {
        let (profile, strategies) = (search.cost().profile().clone(), Some(list.strategies.clone()));
        let planner = Planner::new(profile, search.cost().cluster().clone(), strategies)?;
        Ok(PlannerUnderTest::from_planner(&list.name, planner))
    };
    let listed = lists.iter().map(over).collect::<Result<Vec<_>>>()?;
    let planners = [PlannerUnderTest::from_planner("search", search.clone())].into_iter().chain(listed).collect();
    let records = records(search.cost(), planners, tried)?;
    let ms = |records: &[Record]| mean(records, |record| record.iteration_ms);
    let free = ms(&records[0]);
    row("list", "strategies", "seconds", "learnt ms", "tried ms", "over search");
    row("search", "any", "", "", &format!("{free:.1}"), "");
    for (list, records) in lists.iter().zip(&records[1..]) {
        let learnt = list.learnt.map(|ms| format!("{:.1}", ms.0)).unwrap_or_default();
        let over = format!("{:+.2} %", 100.0 * (ms(records) / free - 1.0));
        let (strategies, seconds) = (list.strategies.len().to_string(), format!("{:.2}", list.seconds));
        row(&list.name, &strategies, &seconds, &learnt, &format!("{:.1}", ms(records)), &over);
    }
    Ok(())
}

/// A list of strategies to choose from.
struct List {
    name: String,
    /// Time to create the list.
    seconds: f64,
    /// Mean iteration expected with the list.
    learnt: Option<Millis>,
    strategies: Vec<Strategy>,
}

/// The lists proposed from these batches, the paper's, and the profile's own.
fn lists(search: &Planner, learnt: &[Batch], counts: &[NonZeroUsize]) -> Result<Vec<List>> {
    let mut lists = Vec::new();
    for &count in counts {
        let start = Instant::now();
        let proposal =
            propose(search, &Request { batches: learnt, count, context: None }, &|| Ok(()), &mut |_| Ok(()))?;
        lists.push(List {
            name: format!("proposal of {} ({} times)", proposal.candidates, proposal.timed),
            seconds: start.elapsed().as_secs_f64(),
            learnt: Some(proposal.expected_ms()),
            strategies: proposal.strategies.iter().map(|one| one.strategy.clone()).collect(),
        });
    }
    let start = Instant::now();
    let strategies = paper(search, learnt)?;
    lists.push(List { name: "paper".into(), seconds: start.elapsed().as_secs_f64(), learnt: None, strategies });
    let own = Planner::new(search.cost().profile().clone(), search.cost().cluster().clone(), None)?;
    lists.push(List { name: "profile".into(), seconds: 0.0, learnt: None, strategies: own.strategies().to_vec() });
    Ok(lists)
}

/// The list of the paper's dynamic program for all sequences of these batches.
fn paper(search: &Planner, batches: &[Batch]) -> Result<Vec<Strategy>> {
    let data = histogram(batches)?;
    let grid = PaperGrid { gpu_step: GPU_STEP, token_step: TOKEN_STEP, context: data.longest() };
    Ok(paper_list(search.cost(), &data, grid)?.into_iter().map(|one| one.strategy).collect())
}

fn row(name: &str, strategies: &str, seconds: &str, learnt: &str, tried: &str, over: &str) {
    say(&mut io::stdout(), &format!("{name:<32} {strategies:>10} {seconds:>8} {learnt:>10} {tried:>10} {over:>12}"));
}
