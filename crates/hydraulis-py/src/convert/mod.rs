//! Values in and out: arrays, errors, pickles, the lock of the interpreter.

pub(crate) mod arrays;
pub(crate) mod errors;
pub(crate) mod gil;
pub(crate) mod pickle;
