//! `plan_bench`.

use std::ffi::OsString;

use hydraulis_bench::comparison;
use pyo3::prelude::*;

use crate::convert::errors::raise_comparison;
use crate::convert::gil::interruptible;

/// Run the command `plan-bench`: compare planners and other methods on the same batches.
///
/// The table goes to standard output, progress and broken promises to standard error. Ctrl-C ends the comparison.
///
/// Args:
///     words: The command line, the program's name first.
///
/// Returns:
///     The exit code: 0, or 1 if some plan breaks a promise.
///
/// Raises:
///     InvalidInputError: The command line, a file or a batch is refused; the code names the case.
///     InfeasibleError: A planner has no plan for a batch.
#[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
#[pyfunction]
pub(crate) fn plan_bench(py: Python<'_>, words: Vec<OsString>) -> PyResult<u8> {
    // The two kinds of errors nest: the outer one is an interruption.
    interruptible(py, |cancellation| Ok(comparison::run(words, cancellation)))?
        .map_err(|error| raise_comparison(py, &error))
}
