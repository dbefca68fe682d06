//! The memory of a rank by its stage, and the limits on tokens that follow from it.
//!
//! A micro-batch may have `cap` tokens: the rank's memory less the reserve, less its optimizer shard over all ranks of
//! the cluster, less parameters and gradients, over the activation bytes per token. The tokens are those of the whole
//! micro-batch, so cp ranks admit about cp times as many. Caps are computed, never read. In a profile that a run
//! measured, parameters and gradients are the flat buffers, sized for the scheme's largest stage, plus the gradient of a
//! trained head between the loss and its backward.
//!
//! Two rules limit a pipeline ([`MemoryRule`](crate::spec::MemoryRule)):
//!
//! - *per micro-batch* (default): every micro-batch has at most `cap` tokens.
//! - *in flight*: any `p` consecutive micro-batches have at most `p` caps together, because under 1F1B stage `j` holds
//!   `min(v, p - j)` micro-batches at once. A sequence may then take `p` caps. Empty micro-batches, which cost `c` and
//!   hold nothing, separate micro-batches that do not fit into memory together, so a replica can run any set of
//!   sequences each of which it admits. Bounds use the same limit: `v` micro-batches hold at most `ceil(v / p)` times
//!   `p` caps. The plan is the shorter of one found under each rule. Training plans an empty micro-batch with `c` and
//!   computes nothing for it.
//!
//! The per-micro-batch limit stays in force under both rules where a stage has no room for `p` caps at once, such as a
//! last stage with a large head; where a profile has the fullest stage's memory alone and gives the stages unequal
//! times or layers, so that each stage's memory is unknown; and where backward recomputes activations, which exist for
//! a whole micro-batch of a layer.
//!
//! A plan states its rule, and the checker derives the limits again. All planners and baselines of a comparison use the
//! same rule.

mod in_flight_limit;
mod stage;

pub use in_flight_limit::InFlightLimit;
pub use stage::RankMemory;
pub(super) use stage::{FullestStage, StageMemory};
