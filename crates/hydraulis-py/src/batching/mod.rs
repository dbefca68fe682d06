//! Micro-batches and context windows without a cost profile.

pub(crate) mod balance;
pub(crate) mod balance_options;
pub(crate) mod windows;
