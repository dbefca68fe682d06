//! From the core's error to the package's exception tree.

use hydraulis_core::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::types::IntoPyDict;

/// The exception of `hydraulis.errors` for an error of the core, with its code.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    let class = match error.kind() {
        ErrorKind::InvalidInput => "InvalidInputError",
        ErrorKind::Infeasible => "InfeasibleError",
        // What the watcher raised comes in its place; nothing is wrong with what was given.
        ErrorKind::Stopped => "HydraulisError",
    };
    exception(py, class, &error.to_string(), error.code())
}

/// An input that the core cannot even be given, because its type is wrong.
pub(crate) fn invalid(py: Python<'_>, message: &str, code: &str) -> PyErr {
    exception(py, "InvalidInputError", message, code)
}

fn exception(py: Python<'_>, class: &str, message: &str, code: &str) -> PyErr {
    let made = py.import("hydraulis.errors").and_then(|module| {
        let keywords = [("code", code)].into_py_dict(py)?;
        module.getattr(class)?.call((message,), Some(&keywords))
    });
    made.map_or_else(|error| error, PyErr::from_value)
}
