//! Cancellation of long work by the caller.

use std::cell::{Cell, RefCell};

use crate::error::{Error, Result};

/// The caller's cancellation function. Long work calls it between small pieces; an error from it ends the work.
pub type Cancellation<'a> = &'a dyn Fn() -> Result<()>;

/// The cancellation function that never ends the work.
pub(crate) const NEVER_CANCELLED: Cancellation<'static> = &|| Ok(());

/// Steps of some nanoseconds between two calls of the caller's function: some hundredths of a second. The function may
/// wait for a lock of the caller's, so small work does not call it at all.
const STEPS: usize = 1 << 22;

/// A cancellation for loops that count their steps and return no errors: it keeps the first error for the end.
pub(crate) struct CountedCancellation<'a> {
    cancellation: Cancellation<'a>,
    /// The steps since the last call of the caller's function.
    steps: Cell<usize>,
    error: RefCell<Option<Error>>,
}

impl<'a> CountedCancellation<'a> {
    pub(crate) fn new(cancellation: Cancellation<'a>) -> CountedCancellation<'a> {
        CountedCancellation { cancellation, steps: Cell::new(0), error: RefCell::new(None) }
    }

    /// Counts steps; returns whether the work is cancelled, from the first error on.
    pub(crate) fn count(&self, steps: usize) -> bool {
        self.steps.set(self.steps.get().saturating_add(steps));
        if self.steps.get() >= STEPS && self.error.borrow().is_none() {
            self.steps.set(0);
            *self.error.borrow_mut() = (self.cancellation)().err();
        }
        self.error.borrow().is_some()
    }

    /// The first error of the caller's function.
    pub(crate) fn result(&self) -> Result<()> {
        self.error.borrow().clone().map_or(Ok(()), Err)
    }
}

impl std::fmt::Debug for CountedCancellation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CountedCancellation").field("steps", &self.steps).finish_non_exhaustive()
    }
}
