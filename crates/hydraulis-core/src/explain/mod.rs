//! A plan in words.

mod explanation;
mod wrapped;

pub use explanation::explain;
