//! Slices of parameters, and what ranks exchange of them.

pub(crate) mod table;
pub(crate) mod transfer;
