//! Generators and judges: inputs, buffers of all ranks, and a slow, direct implementation of the search.

pub(crate) mod arbitrary;
pub(crate) mod oracle;
pub(crate) mod world;
