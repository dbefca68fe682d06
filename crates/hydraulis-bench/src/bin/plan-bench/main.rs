//! Compares planners on the same batches by planning time and by the time of the planned iterations.

mod arguments;
mod progress;

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::process::ExitCode;

use clap::Parser;
use hydraulis_bench::link::link;
use hydraulis_bench::planner_under_test::PlannerUnderTest;
use hydraulis_bench::record::Record;
use hydraulis_bench::run::run;
use hydraulis_bench::summary::Summary;
use hydraulis_bench::{Error, Result};

use crate::arguments::{Arguments, STDOUT};
use crate::progress::Progress;

/// Every plan keeps its promises.
const GOOD: u8 = 0;
/// Some plan breaks a promise.
const BROKEN: u8 = 1;
/// The comparison is missing or incomplete; clap exits with the same code.
const REFUSED: u8 = 2;

fn main() -> ExitCode {
    let code = compare(&Arguments::parse()).unwrap_or_else(|error| {
        complain(&format!("error: {error} [{}]", error.code()));
        REFUSED
    });
    ExitCode::from(code)
}

fn compare(arguments: &Arguments) -> Result<u8> {
    let cost = arguments.cost()?;
    let batches = arguments.batches()?;
    let strategies = arguments.strategies()?;
    let links = arguments.link.map(|rates| link(rates, &cost)).transpose()?;
    let mut progress = Progress::new(batches.len());
    let ready = arguments.planners().into_iter().map(|name| {
        progress.preparing(name.as_str());
        PlannerUnderTest::new(name, &cost, strategies.as_deref(), &batches, links.as_ref())
    });
    let mut planners: Vec<PlannerUnderTest> = ready.collect::<Result<_>>()?;
    let mut output = arguments.json.as_deref().map(Output::open).transpose()?;
    let mut records: Vec<Record> = Vec::new();
    run(&cost, &mut planners, &batches, links.as_ref(), |record, violations| {
        for violation in violations {
            complain(&format!("batch {}, {}: {violation}", record.batch, record.planner));
        }
        if let Some(output) = &mut output {
            output.write(&record)?;
        }
        progress.planned(record.batch);
        records.push(record);
        Ok(())
    })?;
    if let Some(output) = output {
        output.close()?;
    }
    if arguments.json.as_deref() != Some(STDOUT) {
        write!(io::stdout(), "{}", Summary::of(&records)).or_else(|error| unwritable(STDOUT, &error))?;
    }
    Ok(if records.iter().all(Record::is_ok) { GOOD } else { BROKEN })
}

/// The destination of the records.
struct Output {
    path: String,
    writer: Box<dyn Write>,
}

impl Output {
    fn open(path: &str) -> Result<Output> {
        let writer: Box<dyn Write> = match path {
            STDOUT => Box::new(io::stdout()),
            _ => match File::create(path) {
                Ok(file) => Box::new(BufWriter::new(file)),
                Err(error) => {
                    return Err(Error::OutputUnwritable { path: path.into(), why: error.to_string() });
                }
            },
        };
        Ok(Output { path: path.into(), writer })
    }

    fn write(&mut self, record: &Record) -> Result<()> {
        writeln!(self.writer, "{}", record.to_json()).or_else(|error| unwritable(&self.path, &error))
    }

    fn close(mut self) -> Result<()> {
        self.writer.flush().or_else(|error| unwritable(&self.path, &error))
    }
}

/// A reader that closes the pipe early, such as `head`, is no error.
fn unwritable(path: &str, error: &io::Error) -> Result<()> {
    if path == STDOUT && error.kind() == ErrorKind::BrokenPipe {
        return Ok(());
    }
    Err(Error::OutputUnwritable { path: path.into(), why: error.to_string() })
}

/// Writes a line to standard error; a failure of this write cannot be reported.
fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
