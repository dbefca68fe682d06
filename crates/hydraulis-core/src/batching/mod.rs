//! Batches without a cost profile: for training loops and data sets of any kind.

pub mod balance;
pub mod windows;
