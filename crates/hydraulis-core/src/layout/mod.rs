//! Which slice of which parameter lives where, and how it gets there.
//!
//! A parameter's elements have one *canonical order*: row-major with the dimension that tensor parallelism
//! splits moved to the front. So a tensor-parallel slice is an interval, whatever the degree, and all that
//! follows is arithmetic on intervals.
//!
//! Two kinds of layout meet here. In a strategy's layout a rank holds slices of the blocks of its stage. In
//! the *home layout* each element has exactly one home: with one of its holders where that can be under every scheme of a
//! run, and else every block is cut evenly over all ranks.
//! A [`transfer()`] lists, block by block, what a rank trades with every other: gradients go from the holders
//! to home, where all contributions are added in rank order; parameters take the same way back. [`bucket_volumes`]
//! says how much of that leaves each node at least; how long that takes, and what of it an iteration waits for, is the
//! matter of [`timing`](crate::timing).
//!
//! Every held slice's gradient is *partial* here: the replicas saw different sequences, the context ranks different
//! tokens of them, under sequence parallelism so did the tensor ranks that each hold a whole norm, and of a
//! key/value head that several of them hold each saw its own query heads; hence all are added.

mod bucket_home;
mod held;
mod home;
mod movement;
mod parameter;
mod placement;
mod position;
mod runs;
mod transfer;
mod volume;

pub(crate) use held::stage_blocks;
pub use held::{HeldSlice, held_slices};
pub use home::{Home, HomeSlice};
pub use movement::{Holding, Move, Movement, Put, Round, Side, gather, spread};
pub use parameter::{Parameter, ParameterTable};
pub use placement::place;
pub use position::{Position, positions_of, strategy_positions};
pub(crate) use runs::length;
pub use transfer::{BucketTransfer, Segment, Trade, transfer};
pub use volume::{BucketVolume, NodeVolume, bucket_volumes};
