//! Slices of parameters, and their exchange between ranks.

pub(crate) mod table;
pub(crate) mod transfer;
