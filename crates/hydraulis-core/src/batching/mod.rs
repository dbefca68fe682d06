//! Batch balancing and offline packing without a cost profile, for any training loop and data set.

pub mod balance;
pub mod windows;
