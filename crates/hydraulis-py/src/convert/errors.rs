//! Maps the core's errors to exceptions of the package, and lists their codes.

use hydraulis_bench::Error as ComparisonError;
use hydraulis_core::{Error, ErrorCode, ErrorKind, codes};
use pyo3::prelude::*;
use pyo3::types::IntoPyDict;

/// The error codes of the core, in alphabetical order.
///
/// Returns:
///     Name, meaning and remedy of each code.
#[pyfunction]
pub(crate) fn error_codes() -> Vec<(&'static str, &'static str, &'static str)> {
    codes::ALL.iter().map(|code| (code.name, code.meaning, code.remedy)).collect()
}

/// Converts an error of the core to the exception of `hydraulis.errors`, with its code.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    exception(py, class_of(error), &error.to_string(), error.code())
}

/// Converts an error of the comparison of planners to the exception of `hydraulis.errors`, with its code.
pub(crate) fn raise_comparison(py: Python<'_>, error: &ComparisonError) -> PyErr {
    let class = match error {
        ComparisonError::Core(error) | ComparisonError::Batch { error, .. } => class_of(error),
        ComparisonError::NoStatic { .. } | ComparisonError::NotAdmitted { .. } => "InfeasibleError",
        _ => "InvalidInputError",
    };
    exception(py, class, &error.to_string(), error.code())
}

fn class_of(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::InvalidInput => "InvalidInputError",
        ErrorKind::Infeasible => "InfeasibleError",
        // The exception of the progress callback replaces this one.
        ErrorKind::Stopped => "HydraulisError",
    }
}

/// The exception for an argument whose type the core cannot read.
pub(crate) fn invalid(py: Python<'_>, message: &str, code: &ErrorCode) -> PyErr {
    exception(py, "InvalidInputError", message, code.name)
}

fn exception(py: Python<'_>, class: &str, message: &str, code: &str) -> PyErr {
    let made = py.import("hydraulis.errors").and_then(|module| {
        let keywords = [("code", code)].into_py_dict(py)?;
        module.getattr(class)?.call((message,), Some(&keywords))
    });
    made.map_or_else(|error| error, PyErr::from_value)
}
