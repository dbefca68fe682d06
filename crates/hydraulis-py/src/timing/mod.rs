//! The links of a cluster.

pub(crate) mod link;
