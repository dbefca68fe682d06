//! Solves static tuning problems of a file, and compares with its reference results.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use hydraulis_bench::tune::{Record, instances};
use hydraulis_bench::workload::read_lengths;
use hydraulis_bench::{Error, Result};

/// Every instance is solved at least as well as by the reference.
const GOOD: u8 = 0;
/// Some solution is worse than the reference's, or missing where the reference has one, or an instance is refused.
const WORSE: u8 = 1;
/// The file is missing or wrong; clap exits with the same code.
const REFUSED: u8 = 2;

/// A solution within this share of the reference's objective equals it: both add the same terms in another order.
const EQUAL: f64 = 1e-9;

/// The name of standard output as a file.
const STDOUT: &str = "-";

/// Solve the tuning problems of a file and compare with its reference results.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// JSON document of instances; its keys tell their kind.
    #[arg(long, value_name = "FILE")]
    instances: String,
    /// Text file of lengths, one a line: batches without lengths of their own take theirs from here in order.
    #[arg(long, value_name = "FILE")]
    lengths: Option<PathBuf>,
    /// File for one JSON line for each instance; - for standard output in place of the table.
    #[arg(long, value_name = "FILE")]
    json: Option<String>,
}

fn main() -> ExitCode {
    let code = tune(&Arguments::parse()).unwrap_or_else(|error| {
        let _ = writeln!(io::stderr(), "error: {error} [{}]", error.code());
        REFUSED
    });
    ExitCode::from(code)
}

fn tune(arguments: &Arguments) -> Result<u8> {
    let path = &arguments.instances;
    let unreadable = |error: io::Error| Error::FileUnreadable { path: path.clone(), why: error.to_string() };
    let text = fs::read_to_string(path).map_err(unreadable)?;
    let lengths = arguments.lengths.as_deref().map_or_else(|| Ok(Vec::new()), read_lengths)?;
    let records: Vec<Record> =
        instances(path, &text, &lengths)?.iter().map(hydraulis_bench::tune::Instance::solved).collect();
    for message in records.iter().filter_map(|record| record.message.as_ref()) {
        let _ = writeln!(io::stderr(), "error: {message}");
    }
    if let Some(path) = &arguments.json {
        let lines: String = records.iter().map(|record| line(record) + "\n").collect();
        write(path, &lines)?;
    }
    if arguments.json.as_deref() != Some(STDOUT) {
        write(STDOUT, &table(&records))?;
    }
    Ok(if records.iter().all(is_good) { GOOD } else { WORSE })
}

fn line(record: &Record) -> String {
    serde_json::to_string(record).expect("a record holds numbers, texts and lists alone")
}

fn is_good(record: &Record) -> bool {
    let is_solved = record.reference.is_none() || record.gain().is_some_and(|gain| gain >= -EQUAL);
    is_solved && record.message.is_none()
}

fn table(records: &[Record]) -> String {
    let width = records.iter().map(|record| record.name.len()).max().unwrap_or_default();
    let number = |x: Option<f64>| x.map_or("-".to_owned(), |x| format!("{x:.6}"));
    let head = format!("{:width$} {:>16} {:>16} {:>9} {:>9}", "instance", "objective", "reference", "gain", "ms");
    let row = |record: &Record| {
        let gain = record.gain().map_or("-".to_owned(), |gain| format!("{:.3} %", 100.0 * gain));
        let objective = record.error.clone().unwrap_or_else(|| number(record.objective));
        let reference = number(record.reference);
        format!("{:width$} {objective:>16} {reference:>16} {gain:>9} {:>9.2}", record.name, record.ms)
    };
    let rows: Vec<String> = records.iter().map(row).collect();
    let worse = records.iter().filter(|record| !is_good(record)).count();
    format!("{head}\n{}\n{} instances, {worse} worse than their reference\n", rows.join("\n"), records.len())
}

fn write(path: &str, text: &str) -> Result<()> {
    let written = match path {
        STDOUT => io::stdout().write_all(text.as_bytes()),
        _ => File::create(path).and_then(|mut file| file.write_all(text.as_bytes())),
    };
    written.map_err(|error| Error::OutputUnwritable { path: path.to_owned(), why: error.to_string() })
}
