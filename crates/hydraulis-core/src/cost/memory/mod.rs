//! The memory of a rank by its stage, and the limits on tokens that follow from it.

mod rank;
mod stage;
mod window;

pub use rank::RankMemory;
pub(super) use stage::StageMemory;
pub use window::MemoryWindow;
