//! What generates and what judges: inputs, worlds of ranks, a slow and plain twin of the search.

pub(crate) mod arbitrary;
pub(crate) mod oracle;
pub(crate) mod world;
