//! Measures the growth of planning time and gap with the cluster and the batch.

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use clap::Parser;
use hydraulis_bench::planner_under_test::{Name, PlannerUnderTest};
use hydraulis_bench::record::Record;
use hydraulis_bench::run::run;
use hydraulis_bench::scale::{Exponents, Point};
use hydraulis_bench::workload::{Lengths, read_profile};
use hydraulis_bench::{Error, Result};
use hydraulis_core::cost::{CostModel, CostProfile};
use hydraulis_core::spec::Cluster;

/// Measure how planning time and gap grow with the cluster and the batch.
///
/// Each cluster is planned for with each number of tokens per GPU, and a power law is fitted to the CPU time. The exit
/// code is 1 if a plan breaks a promise, and 2 if an argument is wrong.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Cost profile: a preset's name, or the path of a JSON file
    #[arg(long, value_name = "NAME|FILE", default_value = "llama-32b-a800")]
    profile: String,
    /// GPUs of each cluster, in nodes of the profile's size
    #[arg(long, value_delimiter = ',', default_value = "64,256,1024,4096,16384")]
    gpus: Vec<u32>,
    /// Tokens of a batch for each GPU; the fit needs two values or more to separate GPUs from sequences
    #[arg(long, value_delimiter = ',', default_value = "3125,6250,7812", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    tokens_per_gpu: Vec<u64>,
    /// Text file with one length per line, read in order, or a distribution to draw from
    #[arg(long, value_name = "FILE|lognormal:MU,SIGMA,MAX", default_value = "lognormal:6.2,1.2,32768")]
    lengths: Lengths,
    /// Batches of each size; the first one's time is reported separately, because it includes the creation of tables
    #[arg(long, default_value_t = 4)]
    count: usize,
    /// Planner or method to measure
    #[arg(long, default_value = "search")]
    planner: Name,
}

fn main() -> ExitCode {
    match scale(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error} [{}]", error.code());
            ExitCode::from(2)
        }
    }
}

/// Prints a line for each point once it is measured, then the exponents; returns whether every promise is kept.
fn scale(arguments: &Arguments) -> Result<bool> {
    let profile = read_profile(&arguments.profile)?;
    say(&Point::header())?;
    let (mut points, mut good) = (Vec::new(), true);
    for &gpus in &arguments.gpus {
        for &tokens_per_gpu in &arguments.tokens_per_gpu {
            let records = planned(arguments, &profile, gpus, tokens_per_gpu)?;
            good &= records.iter().all(Record::is_ok);
            let point = Point::of(gpus, &records);
            say(&point.to_string())?;
            points.push(point);
        }
    }
    match Exponents::fit(&points) {
        Some(exponents) => say(&format!("\n{exponents}"))?,
        None => say("\nno exponents: GPUs and sequences do not vary apart from each other")?,
    }
    Ok(good)
}

/// The records of all batches of one size.
fn planned(arguments: &Arguments, profile: &CostProfile, gpus: u32, tokens_per_gpu: u64) -> Result<Vec<Record>> {
    let cost = CostModel::new(profile.clone(), Cluster::new(gpus, profile.hardware.gpus_per_node)?);
    let batches = arguments.lengths.batches(u64::from(gpus) * tokens_per_gpu, arguments.count, None, None)?;
    let planner = PlannerUnderTest::new(arguments.planner, &cost, None, &batches, None)?;
    let mut records = Vec::new();
    run(&cost, &mut [planner], &batches, None, |record, violations| {
        for violation in violations {
            let _ = writeln!(io::stderr(), "{gpus} GPUs, batch {}: {violation}", record.batch);
        }
        records.push(record);
        Ok(())
    })?;
    Ok(records)
}

/// Writes a line to standard output; a reader that closes the pipe early is no error.
fn say(line: &str) -> Result<()> {
    match writeln!(io::stdout(), "{line}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Error::OutputUnwritable { path: "-".into(), why: error.to_string() })
        }
        _ => Ok(()),
    }
}
