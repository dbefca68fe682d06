//! Cancellation of long work by the caller.

use crate::error::Result;

/// The caller's cancellation function. Long work calls it between small pieces; an error from it ends the work.
pub type Cancellation<'a> = &'a dyn Fn() -> Result<()>;

/// The cancellation function that never ends the work.
pub(crate) const NEVER_CANCELLED: Cancellation<'static> = &|| Ok(());
