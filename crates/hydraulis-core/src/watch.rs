//! Long work that can be ended from outside.

use crate::error::Result;

/// Called between pieces of long work, each a small part of it: the error that it gives ends the work.
pub type Watch<'a> = &'a dyn Fn() -> Result<()>;

/// Lets the work go on to its end.
pub(crate) const UNWATCHED: Watch<'static> = &|| Ok(());
