//! A plan in words.

mod explanation;
mod memory;
mod recomputed;
mod wrapped;

pub use explanation::{explain, explain_with_memory};
