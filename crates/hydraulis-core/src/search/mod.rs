//! Dispatches, packs, bounds and checks strategies, and returns the best one.
//!
//! The planner chooses from a list or searches. A budget of counted work limits it, not time; even an empty budget
//! gives a valid plan.
//!
//! - **Objective** (`objective.rs`) judges every planned strategy: by its iteration time, or with a link by its step time.
//!   Bounds are on that time, or on the iteration where they do not count transfers.
//! - **Sizing** (`sizing.rs`) opens replicas for the sequences, longest first, by the dual prices of the bound, until they
//!   just fit the cluster.
//! - **Survey** (`survey/`) estimates every mix of up to three schemes that the bound's dual prices do not rule out.
//! - **Proof** (`proof.rs`) leaves out schemes that no shorter plan has, branches the bound, and makes long sequences whole.
//! - **List** (`list.rs`) plans the strategies whose bound is not above the best plan.
//! - **Local search** (`local_search.rs`) moves to neighbouring strategies to which the batch is assigned in less time. If
//!   the step stays 2 % above the bound, it also evaluates the strategies of a list.
//! - **Dispatch** assigns twice, the second time with the excess of packing over the estimates, then moves and swaps.
//!   Without a pipeline it then assigns again with one micro-batch less, as long as the time falls.
//! - **Layer plans** multiply the schemes. A search with them that ends far from its bound also searches without them
//!   (`shorter_of_two.rs`).
//! - **Large batches**, beyond local search: long sequences keep the replica of the sizing, and the shortest are assigned
//!   again by the excess of packing.

mod evaluation;
mod limited;
mod list;
mod local_search;
mod objective;
mod planner;
mod proof;
mod shorter_of_two;
mod sizing;
mod survey;
mod task;
mod times;
mod transfers;
mod values;
mod with_strategy;

pub use limited::RunLimit;
pub use planner::Planner;
pub(crate) use times::Times;
