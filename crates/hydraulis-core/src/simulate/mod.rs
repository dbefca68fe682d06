//! A plan's iteration under stated conditions: slow ranks, links that take time; and where its time goes.
//!
//! The instruction lists are those that the runtime executes, their times those of the cost model. A stage computes as
//! slowly as the slowest of its ranks, which meet in every layer. Activations and gradients travel between stages while
//! stages compute. By a [`Link`](crate::timing::Link) parameters and gradients travel between home and replicas as plans count
//! them, behind what is then computed; activations and these are not in each other's way. The optimizer is not part of it.

mod conditions;
mod gpu_time;
mod held;
mod iteration;
mod network;
mod rank_memory;
mod step;
mod workload;

pub use conditions::{Conditions, Slowdowns};
pub use gpu_time::GpuTime;
pub use held::Held;
pub use iteration::{Iteration, ReplicaRun, StageRun, simulate_iteration};
pub use network::{Network, Wire};
pub use rank_memory::rank_memory;
pub use step::{StepRun, Trip};
