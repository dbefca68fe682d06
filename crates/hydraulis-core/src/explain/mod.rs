//! A plan in words.

mod explanation;
mod recomputed;
mod wrapped;

pub use explanation::explain;
