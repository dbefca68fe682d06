//! The one door out of the GIL, and the way back in for whoever watches long work.

use std::cell::RefCell;

use hydraulis_core::{Error, Result};
use pyo3::prelude::*;

use crate::errors::raise;

/// Runs `work` without the GIL and turns its error into an exception.
///
/// Other Python threads go on meanwhile: a training thread that launches kernels must not wait for a plan.
pub(crate) fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    py.detach(work).map_err(|error| raise(py, &error))
}

/// What long work tells of itself: a step's name, how much of it is done, and of how much.
pub(crate) type Watch<'a> = &'a mut dyn FnMut(&str, usize, usize) -> Result<()>;

/// The same for long work: `progress` is called with each step that it tells, and Ctrl-C is honoured there.
///
/// An exception, raised by `progress` or by Ctrl-C, ends the work and goes on from here.
pub(crate) fn watched<T: Send>(
    py: Python<'_>,
    progress: Option<&Bound<'_, PyAny>>,
    work: impl FnOnce(Watch<'_>) -> Result<T> + Send,
) -> PyResult<T> {
    let progress = progress.map(|progress| progress.clone().unbind());
    let mut raised = None;
    let mut tell = |step: &str, done: usize, of: usize| {
        let told = Python::attach(|py| {
            py.check_signals()?;
            progress.as_ref().map_or(Ok(()), |progress| progress.call1(py, (step, done, of)).map(drop))
        });
        told.map_err(|error| {
            raised = Some(error);
            Error::Stopped
        })
    };
    let outcome = detached(py, || work(&mut tell));
    raised.map_or(outcome, Err)
}

/// The same for long work that tells nothing of itself.
///
/// Only the main thread hears of Ctrl-C, so another one never comes back for the GIL: a plan made beside training must
/// not wait for the thread that launches kernels, nor that one for it.
pub(crate) fn interruptible<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(hydraulis_core::Watch<'_>) -> Result<T> + Send,
) -> PyResult<T> {
    let threading = py.import("threading")?;
    let main = threading.call_method0("main_thread")?.getattr("ident")?;
    if !threading.call_method0("get_ident")?.eq(main)? {
        return detached(py, || work(&|| Ok(())));
    }
    watched(py, None, |watch| {
        let watch = RefCell::new(watch);
        work(&|| watch.borrow_mut()("", 0, 0))
    })
}
