//! The slices of every parameter on every rank, and their transfers.
//!
//! **Canonical order.** A parameter's elements have one *canonical order*: row-major with the dimension that tensor
//! parallelism splits moved to the front. A tensor-parallel slice is therefore an interval of whole units (heads, or
//! single rows) under any degree, and all that follows is arithmetic on intervals. Where there are fewer units than
//! ranks, ranks hold copies. There is no padding: rows that do not divide evenly are split unevenly.
//!
//! **Local shards.** Under a strategy a rank holds slices of the layer groups of its stage (embedding, layers, head).
//! Stages get layers so that the slowest stage, the head included, is as fast as possible, or as
//! `train.stage_layers` states. Replicas without work hold nothing. Neighbouring tensor ranks hold slices far apart:
//! the ranks of `<tp4>` quarters 0, 2, 1 and 3, those of `<tp2>` halves 0, 1, 0 and 1, so that the shard under a wide
//! degree is a part of the shard under each degree that divides it.
//!
//! **Owners.** Each element has exactly one owner, fixed for the run. Where a rank's shard under one scheme is a part
//! of its shard under each other scheme of the run (one scheme alone; tensor degrees that divide each other, without
//! stages), the owner is one of the ranks that hold the element. Otherwise every layer group is cut evenly over all
//! ranks. A checkpoint continues under either.
//!
//! **Transfers.** [`transfer()`] lists, bucket by bucket, the exchanges of a rank: gradients move from the replica
//! group of an element to its owner, where they are added in rank order, then in node order, in at least float32;
//! parameters move back the same way. Inside one node each rank of the group exchanges with each owner. Between nodes
//! an element moves once for each node that has it: the rank with the owner's place in its node (the *rail*) relays it,
//! adds its node's gradients before it sends them, and distributes parameters. Owners of consecutive pieces share a
//! rail, so each transfer is a run. Fully split, gradients of 64 ranks in nodes of 8 cross between nodes 7 times the
//! model for `64x<1>` instead of 56, and 7 instead of 14 for `16x<tp4>`.
//!
//! **Partial gradients.** Every local shard's gradient is *partial*: the replicas saw different sequences, the context
//! ranks different tokens, and so did tensor ranks that each hold a whole norm under sequence parallelism; ranks that
//! share a key/value head saw their own query heads. Each rank of the replica group sends its own, and all are added.
//!
//! **Volume.** Of `D` equal replicas, `D - 1` models travel each way, as in ZeRO-1, if replicas are single ranks or
//! owners hold their elements. Other schemes move up to one model more, because owners are the same for every
//! strategy. No owner could serve all of them: with one replica, a rank of `<tp8>` holds an eighth of every layer and a
//! rank of `<pp8>` an eighth of the layers. [`bucket_volumes`] computes the least bytes that leave each node;
//! [`timing`](crate::timing) turns them into times.

mod bucket_owners;
mod local_shard;
mod optimizer_shards;
mod parameter;
mod placement;
mod position;
mod runs;
mod transfer;
mod volume;

pub(crate) use local_shard::stage_layer_groups;
pub use local_shard::{LocalSlice, local_slices};
pub use optimizer_shards::{OptimizerShards, ShardSlice};
pub use parameter::{Parameter, ParameterTable};
pub use placement::place;
pub(crate) use placement::{PlacementOrder, place_in_order};
pub use position::{Position, micro_batches_of_ranks, positions_of, strategy_positions};
pub use transfer::{BucketTransfer, Exchange, Segment, transfer};
pub use volume::{BucketVolume, NodeVolume, bucket_volumes, least_volumes};
