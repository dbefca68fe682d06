//! Plain data parallelism: sequences onto equal replicas, in micro-batches under one cap.
//!
//! For a training loop whose strategy is fixed: every replica takes `a s^2 + b s` for a sequence of `s` tokens, and
//! the sum of that for a micro-batch. What must be equal depends on where the replicas wait for one another. With
//! one barrier a step (DDP, ZeRO-1) it is their totals; with one barrier a micro-batch (FSDP, ZeRO-3) it is the
//! micro-batches of one *slot*, the i-th of each replica, and all replicas run the same number of them.
//!
//! No micro-batch exceeds the cap, and a proven bound says how far from the best the result is at most. For `n` sequences
//! one barrier a step takes `O(n log n)`; with one a micro-batch slots are evened one after another, up to `O(n^2)`.
//! Pipelines, fixed costs and unequal replicas are the planner's: see `plan`.

mod balancer;
mod bound;
mod by_packs;
mod by_slot;
mod by_step;
mod exchange;
mod fullest;
mod level;
mod micro_batch;
mod quickest;
mod workload;

pub use balancer::{Balance, Balancer, Barrier};
pub use micro_batch::MicroBatch;
pub use workload::SequenceCost;
