//! Balancing and offline packing.

mod balance;
mod windows;
