//! Releases the GIL around the core's work, and takes it again for progress callbacks.

use std::sync::Mutex;

use hydraulis_core::{Cancellation, Error, Result};
use pyo3::prelude::*;

use crate::convert::errors::raise;

/// Runs `work` without the GIL and converts its error to an exception.
///
/// Other Python threads continue meanwhile: a training thread that launches kernels must not wait for a plan.
pub(crate) fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    py.detach(work).map_err(|error| raise(py, &error))
}

/// The progress callback of long work: it receives a step's name, the completed amount and the total.
pub(crate) type ProgressCallback<'a> = &'a mut dyn FnMut(&str, usize, usize) -> Result<()>;

/// Runs long work without the GIL: `progress` receives each reported step, and Ctrl-C ends the work there and wherever
/// the work checks for cancellation.
///
/// An exception from `progress` or Ctrl-C ends the work and is raised here. Only the main thread receives Ctrl-C, so
/// another thread takes the GIL again for progress reports alone: a plan computed during training must not wait for the
/// thread that launches kernels, nor that thread for the plan.
pub(crate) fn cancellable<T: Send>(
    py: Python<'_>,
    progress: Option<&Bound<'_, PyAny>>,
    work: impl FnOnce(Cancellation<'_>, ProgressCallback<'_>) -> Result<T> + Send,
) -> PyResult<T> {
    let progress = progress.map(|progress| progress.clone().unbind());
    let hears_signals = is_main_thread(py)?;
    let raised = Mutex::new(None);
    let attached = |call: &dyn Fn(Python<'_>) -> PyResult<()>| {
        Python::attach(call).map_err(|error| {
            *raised.lock().expect("nothing panics while it is held") = Some(error);
            Error::Stopped
        })
    };
    let cancellation = || if hears_signals { attached(&|py| py.check_signals()) } else { Ok(()) };
    let mut report = |step: &str, done: usize, of: usize| {
        cancellation()?;
        progress.as_ref().map_or(Ok(()), |progress| attached(&|py| progress.call1(py, (step, done, of)).map(drop)))
    };
    let outcome = detached(py, || work(&cancellation, &mut report));
    raised.into_inner().expect("nothing panics while it is held").map_or(outcome, Err)
}

/// Runs long work without the GIL and without progress reports; Ctrl-C ends it.
pub(crate) fn interruptible<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(Cancellation<'_>) -> Result<T> + Send,
) -> PyResult<T> {
    cancellable(py, None, |cancellation, _| work(cancellation))
}

fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    let main = threading.call_method0("main_thread")?.getattr("ident")?;
    threading.call_method0("get_ident")?.eq(main)
}
