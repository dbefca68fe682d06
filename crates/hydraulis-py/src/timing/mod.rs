//! Links of a cluster.

pub(crate) mod link;
