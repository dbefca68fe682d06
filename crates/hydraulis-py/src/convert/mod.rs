//! Conversions of values: arrays, errors, pickles, and the release of the GIL.

pub(crate) mod arrays;
pub(crate) mod errors;
pub(crate) mod gil;
pub(crate) mod integers;
pub(crate) mod pickle;
pub(crate) mod text;
