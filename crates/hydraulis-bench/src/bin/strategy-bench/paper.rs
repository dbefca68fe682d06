//! Runs the paper's dynamic program.

use std::io;
use std::time::Instant;

use hydraulis_bench::Result;
use hydraulis_bench::baseline::{PaperGrid, paper_list};
use hydraulis_core::Tokens;
use hydraulis_core::batch::{Batch, LengthHistogram};

use crate::arguments::PaperArguments;
use crate::say;

pub(crate) fn run(arguments: &PaperArguments) -> Result<()> {
    let search = arguments.workload.search()?;
    let data = histogram(&arguments.workload.batches()?)?;
    let grid = PaperGrid {
        gpu_step: arguments.gpu_step,
        token_step: Tokens(arguments.token_step),
        context: Tokens(arguments.context),
    };
    let start = Instant::now();
    let list = paper_list(search.cost(), &data, grid)?;
    let seconds = start.elapsed().as_secs_f64();
    say(&mut io::stdout(), &format!("{} strategies in {seconds:.3} s", list.len()));
    for one in list {
        say(&mut io::stdout(), &format!("up to {:>6} tokens, {:>12.1} ms: {}", one.serves, one.ms.0, one.strategy));
    }
    Ok(())
}

/// The number of occurrences of each length in the batches.
pub(crate) fn histogram(batches: &[Batch]) -> Result<LengthHistogram> {
    let lengths = batches.iter().flat_map(Batch::tokens).map(|tokens| i64::try_from(tokens.0).unwrap_or(i64::MAX));
    Ok(LengthHistogram::new(&lengths.collect::<Vec<_>>(), None)?)
}
