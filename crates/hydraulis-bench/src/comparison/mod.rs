//! The command `plan-bench`, which `hydraulis bench` runs too: it compares planners on the same batches by planning time
//! and by the time of the planned iterations.

mod arguments;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::time::{Duration, Instant};

use clap::Parser;
use hydraulis_core::Cancellation;

use crate::comparison::arguments::{Arguments, STDOUT};
use crate::error::{Error, Result};
use crate::link::link;
use crate::planner_under_test::PlannerUnderTest;
use crate::record::Record;
use crate::run;
use crate::summary::Summary;

/// Every plan keeps its promises.
const GOOD: u8 = 0;
/// Some plan breaks a promise.
const BROKEN: u8 = 1;
/// Time before the first line, and between two lines.
const PAUSE: Duration = Duration::from_secs(2);

/// Runs the command and returns its exit code.
///
/// The table, or `--help`, goes to standard output; progress and broken promises go to standard error. `words` is the
/// command line, the program's name first. `cancellation` ends the comparison between two plans.
pub fn run(words: impl IntoIterator<Item = OsString>, cancellation: Cancellation<'_>) -> Result<u8> {
    match Arguments::try_parse_from(words) {
        Ok(arguments) => compare(&arguments, cancellation),
        Err(error) if error.use_stderr() => Err(Error::CommandLine { why: in_one_line(&error.to_string()) }),
        Err(help) => print(&help).map(|()| GOOD),
    }
}

fn compare(arguments: &Arguments, cancellation: Cancellation<'_>) -> Result<u8> {
    let cost = arguments.cost()?;
    let batches = arguments.batches()?;
    let strategies = arguments.strategies()?;
    let links = arguments.link.map(|rates| link(rates, &cost)).transpose()?;
    let mut progress = Progress::new(batches.len());
    let ready = arguments.planners().into_iter().map(|name| {
        cancellation()?;
        progress.preparing(name.as_str());
        PlannerUnderTest::new(name, &cost, strategies.as_deref(), &batches, links.as_ref())
    });
    let mut planners: Vec<PlannerUnderTest> = ready.collect::<Result<_>>()?;
    let mut output = arguments.json.as_deref().map(Output::open).transpose()?;
    let mut records: Vec<Record> = Vec::new();
    run::run(&cost, &mut planners, &batches, links.as_ref(), |record, violations| {
        cancellation()?;
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
        print(&Summary::of(&records))?;
    }
    Ok(if records.iter().all(Record::is_ok) { GOOD } else { BROKEN })
}

/// Writes to standard output and flushes it: in an extension module nothing flushes at the process's end.
fn print(text: &dyn std::fmt::Display) -> Result<()> {
    let mut output = io::stdout();
    write!(output, "{text}").and_then(|()| output.flush()).or_else(|error| unwritable(STDOUT, &error))
}

/// Joins the lines of clap's error above its usage.
fn in_one_line(text: &str) -> String {
    let lines = text.lines().take_while(|line| !line.starts_with("Usage:")).map(str::trim);
    let said: Vec<&str> = lines.filter(|line| !line.is_empty() && !line.starts_with("For more information")).collect();
    said.join(" ").trim_start_matches("error: ").to_owned()
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

/// The time of the last line.
struct Progress {
    batches: usize,
    last: Instant,
}

impl Progress {
    fn new(batches: usize) -> Progress {
        Progress { batches, last: Instant::now() }
    }

    /// Reports that a planner under test prepares: one that keeps one strategy reads all batches first.
    fn preparing(&mut self, planner: &str) {
        self.say(|batches| format!("preparing {planner} for {batches} batches"));
    }

    /// Reports that a planner under test planned a batch.
    fn planned(&mut self, batch: usize) {
        self.say(|batches| format!("batch {} of {batches}", batch + 1));
    }

    fn say(&mut self, line: impl FnOnce(usize) -> String) {
        if self.last.elapsed() >= PAUSE {
            self.last = Instant::now();
            complain(&line(self.batches));
        }
    }
}
