//! Stage 0: what there is to plan with, validated where it is made.

mod cluster;
mod scheme;
mod strategy;

pub use cluster::Cluster;
pub use scheme::Scheme;
pub use strategy::Strategy;
