//! The one door out of the GIL, and the way back in for whoever watches long work.

use std::sync::Mutex;

use hydraulis_core::{Error, Result, Watch};
use pyo3::prelude::*;

use crate::convert::errors::raise;

/// Runs `work` without the GIL and turns its error into an exception.
///
/// Other Python threads go on meanwhile: a training thread that launches kernels must not wait for a plan.
pub(crate) fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    py.detach(work).map_err(|error| raise(py, &error))
}

/// What long work tells of itself: a step's name, how much of it is done, and of how much.
pub(crate) type Tell<'a> = &'a mut dyn FnMut(&str, usize, usize) -> Result<()>;

/// The same for long work: `progress` is called with each step that it tells, and Ctrl-C is honoured there and within steps,
/// wherever the work asks its watch.
///
/// An exception, raised by `progress` or by Ctrl-C, ends the work and goes on from here. Only the main thread hears of Ctrl-C,
/// so another one never comes back for the GIL but to tell: a plan made beside training must not wait for the thread that
/// launches kernels, nor that one for it.
pub(crate) fn watched<T: Send>(
    py: Python<'_>,
    progress: Option<&Bound<'_, PyAny>>,
    work: impl FnOnce(Watch<'_>, Tell<'_>) -> Result<T> + Send,
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
    let watch = || if hears_signals { attached(&|py| py.check_signals()) } else { Ok(()) };
    let mut tell = |step: &str, done: usize, of: usize| {
        watch()?;
        progress.as_ref().map_or(Ok(()), |progress| attached(&|py| progress.call1(py, (step, done, of)).map(drop)))
    };
    let outcome = detached(py, || work(&watch, &mut tell));
    raised.into_inner().expect("nothing panics while it is held").map_or(outcome, Err)
}

/// The same for long work that tells nothing of itself.
pub(crate) fn interruptible<T: Send>(py: Python<'_>, work: impl FnOnce(Watch<'_>) -> Result<T> + Send) -> PyResult<T> {
    watched(py, None, |watch, _| work(watch))
}

fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    let main = threading.call_method0("main_thread")?.getattr("ident")?;
    threading.call_method0("get_ident")?.eq(main)
}
