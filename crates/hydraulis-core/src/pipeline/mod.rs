//! The instruction lists that run a replica's micro-batches through its pipeline.
//!
//! The order is PipeDream-flush, also called 1F1B (Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN
//! Training"): stage `j` of `p` runs `p - 1 - j` forwards ahead, then one forward and one backward in turn.
//! `one_f_one_b` states it once; the packer's makespan, the simulator and the executor all follow it.
//!
//! The lists finish even if every rank had one channel and every exchange were a rendezvous in list order. A measured
//! timeline is the same lists with measured durations.

mod critical_path;
mod instruction;
mod makespan;
mod one_f_one_b;
mod rendezvous;
mod simulate;

pub(crate) use critical_path::CriticalPath;
pub use instruction::{Instruction, Neighbour, instructions};
pub use makespan::{MakespanBuffers, delayed_ends, makespan};
pub use one_f_one_b::{Compute, compute_order};
pub use rendezvous::finishes;
pub use simulate::{Span, StageTimes, Timeline, simulate, simulate_delayed, simulate_over};
