//! Plain data parallelism: sequences onto equal replicas, in micro-batches under one cap.
//!
//! For a training loop with a fixed strategy: every replica takes `a s^2 + b s` for a sequence of `s` tokens, and the
//! sum over the sequences for a micro-batch. The quantity to balance depends on the replicas' barriers.
//!
//! - One barrier per step (DDP, ZeRO-1): the time is the greatest total of a replica.
//! - One barrier per micro-batch (FSDP, ZeRO-3): the time is the sum over the *slots*, the i-th micro-batches of all
//!   replicas, of the longest one. All replicas run the same number of micro-batches: the least that tokens and long
//!   sequences allow, unless these fill them to the brim.
//!
//! Each barrier has its own result, because either is poor under the other. Where equal totals leave replicas with
//! unequal tokens, so that many need one micro-batch more, micro-batches are packed before they are assigned.
//!
//! No micro-batch exceeds the cap. A proven bound, valid for any number of micro-batches, states the distance from the
//! optimum. For `n` sequences one barrier per step takes `O(n log n)`; one per micro-batch balances the slots one after
//! another, up to `O(n^2)`. The planner covers pipelines, fixed costs and unequal replicas.

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
