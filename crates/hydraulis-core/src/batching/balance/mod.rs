//! Plain data parallelism: assigns sequences to replicas, in micro-batches under a cap.
//!
//! The balancer serves a training loop with a fixed strategy. Every replica takes `a s^2 + b s` for a sequence of `s`
//! tokens; the time of a micro-batch is the sum over its sequences. The quantity to balance depends on the replicas'
//! barriers.
//!
//! - One barrier per step (DDP, ZeRO-1): the time is the greatest total of a replica.
//! - One barrier per micro-batch (FSDP, ZeRO-3): a *slot* is the set of the i-th micro-batches of all replicas, and
//!   the time is the sum over the slots of each slot's longest micro-batch. All replicas run the same number of
//!   micro-batches: the least number that tokens and long sequences allow, unless these almost fill the slots.
//!
//! Each barrier has its own balance, because a balance for one barrier is poor under the other. Where equal totals
//! leave replicas with unequal tokens, so that many need one micro-batch more, the sequences are packed into
//! micro-batches before the micro-batches are assigned.
//!
//! No micro-batch exceeds the cap, and none is empty unless the options permit it. A proven bound, valid for any
//! permitted number of micro-batches, states the distance from the optimum. For `n` sequences, the balance for one
//! barrier per step takes `O(n log n)`. The balance for one barrier per micro-batch works on one slot after another and
//! takes up to `O(n^2)`.
//!
//! [`BalanceOptions`] has the demands of a loop, and [`SequenceValues`] the values of sequences beyond their lengths.
//! Under those that the plain algorithms do not know, `constrained` makes the balance and proves its bound. The planner
//! covers pipelines and replicas of several schemes.

mod balancer;
mod bound;
mod by_packs;
mod by_slot;
mod by_step;
mod constrained;
mod exchange;
mod fullest;
mod items;
mod micro_batch;
mod no_empty;
mod options;
mod quickest;
mod rebalance;
mod workload;

pub use balancer::{Balance, Balancer, Barrier};
pub use items::SequenceValues;
pub use micro_batch::MicroBatch;
pub use options::BalanceOptions;
pub use workload::SequenceCost;
