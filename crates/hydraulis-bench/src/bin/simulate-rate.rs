//! Measures the speed of the simulator on one thread.

use std::io::{self, Write};

use clap::Parser;
use hydraulis_bench::simulation_rate::Rate;

/// Measure how many instructions a second the simulator runs, over pipelines of several sizes.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Stages of each pipeline
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16", value_parser = clap::value_parser!(u16).range(1..))]
    stages: Vec<u16>,
    /// Micro-batches of each pipeline
    #[arg(long, value_delimiter = ',', default_value = "8,64,1024", value_parser = clap::value_parser!(u16).range(1..))]
    micro_batches: Vec<u16>,
    /// Least number of instructions to run for each size
    #[arg(long, default_value_t = 5_000_000, value_parser = clap::value_parser!(u32).range(1..))]
    instructions: u32,
}

fn main() -> io::Result<()> {
    let arguments = Arguments::parse();
    let instructions = usize::try_from(arguments.instructions).unwrap_or(usize::MAX);
    let mut out = io::stdout();
    writeln!(out, "{}", Rate::header())?;
    for &stages in &arguments.stages {
        for &micro_batches in &arguments.micro_batches {
            writeln!(out, "{}", Rate::measure(stages.into(), micro_batches.into(), instructions))?;
        }
    }
    Ok(())
}
