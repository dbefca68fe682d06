//! Compares planners on the same batches by planning time and by the time of the planned iterations.

use std::env;
use std::io::{self, Write};
use std::process::ExitCode;

use hydraulis_bench::comparison;

/// The comparison is missing or incomplete.
const REFUSED: u8 = 2;

fn main() -> ExitCode {
    let code = comparison::run(env::args_os(), &|| Ok(())).unwrap_or_else(|error| {
        // A failure of this write cannot be reported.
        let _ = writeln!(io::stderr(), "error: {error} [{}]", error.code());
        REFUSED
    });
    ExitCode::from(code)
}
