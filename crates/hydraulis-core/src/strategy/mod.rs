//! Stage 3: candidate strategies, and where their replicas lie on the cluster.

mod candidates;
mod placement;

pub use candidates::candidates;
pub use placement::place;
