//! Stage 3: candidate strategies, and where their replicas lie on the cluster.

mod candidates;
mod neighbours;
mod placement;

pub use candidates::{candidates, mixes, nothing_fits, usable_schemes};
pub use neighbours::neighbours;
pub use placement::place;
