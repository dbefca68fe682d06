//! Measures the cost of a run's choice of strategies: short lists, limits and lookaheads, against a search for each
//! batch.

mod arguments;
mod exhaustive;
mod limit;
mod lookahead;
mod paper;
mod propose;
mod records;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use hydraulis_bench::Result;

use crate::arguments::{Arguments, Command};

/// The measurement is missing or incomplete; clap exits with the same code.
const REFUSED: u8 = 2;

fn main() -> ExitCode {
    match measure(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&mut io::stderr(), &format!("error: {error} [{}]", error.code()));
            ExitCode::from(REFUSED)
        }
    }
}

fn measure(arguments: &Arguments) -> Result<()> {
    match &arguments.command {
        Command::Exhaustive(arguments) => exhaustive::run(arguments),
        Command::Propose(arguments) => propose::run(arguments),
        Command::Limit(arguments) => limit::run(arguments),
        Command::Lookahead(arguments) => lookahead::run(arguments),
        Command::Paper(arguments) => paper::run(arguments),
    }
}

/// Writes a line; a failure of this write cannot be reported.
fn say(output: &mut dyn Write, line: &str) {
    let _ = writeln!(output, "{line}");
}
