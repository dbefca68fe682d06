//! A plan's iteration under stated conditions, slow ranks and links that take time, and the use of all ranks' time.
//!
//! The instruction lists are those that the runtime executes, with the times of the cost model.
//!
//! - A stage computes as slowly as its slowest rank, because its ranks meet in every layer. The rates of the cluster's
//!   ranks are in the plan's times; the slowdowns of the conditions come on top.
//! - Between stages each rank sends its share of the tokens, inside a node over its own wire and between nodes over the
//!   node's wire. Every message that leaves the node has an even share of that wire. Each wire carries one message after
//!   another in each direction.
//! - With a [`Link`](crate::timing::Link), transfers are placed on the simulated timeline as in a plan. If ranks or
//!   links are slow, the step is simulated instead of repeated from the plan. Transfers and messages between stages do
//!   not slow each other. The optimizer is not simulated.
//! - The time of all ranks splits into computing, waiting for a slower rank, for another stage and for the slowest
//!   replica, ranks without work, and exposed transfers.
//! - A stage saves a micro-batch's activations from the start of its forward to the end of its backward. Each token takes
//!   `activation_bytes_per_token / pp` bytes.

mod conditions;
mod gpu_time;
mod iteration;
mod memory;
mod network;
mod step;
mod workload;

pub use conditions::{Conditions, Slowdowns};
pub use gpu_time::GpuTime;
pub use iteration::{Iteration, ReplicaRun, StageRun, simulate_iteration};
pub use memory::{SavedTokens, rank_memory};
pub use network::{Network, Wire};
pub use step::{StepRun, TransferSpan};
