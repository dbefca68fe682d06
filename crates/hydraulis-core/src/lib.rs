//! The Hydraulis planner: a plan for the next global batch of variable-length sequences.
//!
//! Memory of a micro-batch grows with its tokens, time with the sum of their squares, and lengths have a long
//! tail. So each iteration has its own plan. The data's way, and the modules in its order:
//!
//! | takes | gives | module |
//! |---|---|---|
//! | degrees, ranks | [`spec::Cluster`], [`spec::Scheme`], [`spec::Strategy`] | [`spec`] |
//! | token counts | [`batch::Batch`] | [`batch`] |
//! | a profile, a cluster | [`cost::CostModel`]: time, longest admissible length | [`cost`] |
//! | a strategy | its ranks, the slices of parameters on each, their transfers | [`layout`] |
//! | micro-batches | instruction lists, simulated timeline | [`pipeline`] |
//! | transfers, computation | their times, and the part that an iteration waits for | [`timing`] |
//! | all of these | [`plan::Plan`], a value | [`plan`] |
//! | a plan | the promises that it breaks | [`check`] |
//! | costs | the work that a replica can do by a time | [`capacity`] |
//! | batch, costs | a proven lower bound, a [`plan::Bound`] | `bound` |
//! | batch, strategy | candidates, dispatch, ordered micro-batches | [`construct`] |
//! | batch, costs | the best plan found | [`search`] |
//! | a plan, conditions | the iteration under them | [`simulate`] |
//! | a plan | sentences | [`explain`] |
//! | a distribution of lengths | a short list of strategies for a run | [`propose`] |
//! | several batches | the plans of all, together | [`lookahead`] |
//!
//! [`batching`] needs no profile: plain data parallelism over equal replicas, and the offline packing of whole data
//! sets.
//!
//! A module uses only those before it in the list below. The order is the proof that [`check`], the judge of plans,
//! shares no code with those that make them: capacities, construction and search are declared after it.
//!
//! The core knows no Python, opens no file, prints nothing and reads no clock: a plan depends on its inputs
//! alone, and the same inputs give the same bytes.
//!
//! ```
//! use hydraulis_core::{batch, cost, pipeline, search, spec};
//!
//! let cluster = spec::Cluster::new(64, 8)?;
//! let planner = search::Planner::new(cost::preset("llama-32b-a800")?, cluster, None)?;
//! let batch = batch::Batch::new(&[31_000, 12_000, 900, 900, 450, 80], None)?;
//!
//! let plan = planner.plan(&batch)?;
//! assert!(planner.check(&plan, &batch).is_empty());
//! assert!(plan.iteration_ms >= plan.lower_bound.ms);
//!
//! let first = &plan.replicas[0];
//! let list = pipeline::instructions(0, first.scheme.stages(), first.micro_batches.len());
//! assert!(matches!(list[0], pipeline::Instruction::Forward { micro_batch: 0 }));
//! assert_eq!(plan.positions().len(), 64);
//! # Ok::<(), hydraulis_core::Error>(())
//! ```

#![forbid(unsafe_code)]

mod error;
mod linear;
mod units;

mod cancellation;

pub mod spec;

pub mod batch;

pub mod batching;

pub mod cost;

pub mod layout;

pub mod pipeline;

pub mod timing;

pub mod plan;

pub mod check;

pub mod capacity;

mod bound;

pub mod construct;

pub mod search;

pub mod simulate;

pub mod explain;

pub mod propose;

pub mod lookahead;

pub mod tuning;

pub use cancellation::Cancellation;
pub use error::{
    Admitting, BalanceError, ClusterError, Error, ErrorCode, ErrorKind, FitError, LayoutError, LinkError, ProfileError,
    Result, StrategyError, WindowError, codes,
};
pub use units::{Millis, Tokens};
