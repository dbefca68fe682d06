//! Simulation of an iteration under stated conditions.

pub(crate) mod iteration;
pub(crate) mod network;
