//! The one door out of the GIL.

use pyo3::prelude::*;

use crate::errors::raise;

/// Runs `work` without the GIL and turns its error into an exception.
///
/// Other Python threads go on meanwhile: a training thread that launches kernels must not wait for a plan.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> hydraulis_core::Result<T> + Send,
) -> PyResult<T> {
    py.detach(work).map_err(|error| raise(py, &error))
}
