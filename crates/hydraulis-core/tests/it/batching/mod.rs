//! Balancing and offline packing.

mod balance;
mod balance_options;
mod windows;
