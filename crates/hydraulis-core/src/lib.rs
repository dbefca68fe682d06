//! The Hydraulis planner: what to do with the next global batch of variable-length sequences.
//!
//! Memory of a micro-batch grows with its tokens, time with the sum of their squares, and lengths have a long
//! tail. So each iteration is planned anew. The data's way, and the modules in its order:
//!
//! | stage | takes | gives | module |
//! |---|---|---|---|
//! | 0 spec | degrees, ranks | [`spec::Cluster`], [`spec::Scheme`], [`spec::Strategy`] | [`spec`] |
//! | 1 lengths | token counts | [`lengths::Batch`] | [`lengths`] |
//! | 2 cost | a profile, a cluster | [`cost::CostModel`]: time, longest admissible length | [`cost`] |
//! | 3 strategy | costs | candidates, and their ranks | [`strategy`] |
//! | 3b capacity | costs | what a replica can take by a time | [`capacity`] |
//! | 4 dispatch | batch, strategy | which sequence goes to which replica | [`dispatch`] |
//! | 5 pack | a replica's sequences | ordered micro-batches | [`pack`] |
//! | 6 plan | the best of 3 to 5 | [`plan::Plan`], bounded and checked | [`plan`] |
//! | 7 schedule | micro-batches | instruction lists, simulated timeline | [`schedule`] |
//! | 8 layout | a plan, home | what is transferred | [`layout`] |
//!
//! Around stage 6, over more than one batch: [`propose`] chooses a short list of strategies for a run, [`lookahead`] plans
//! the batches of several iterations together.
//! [`simulation`] runs a plan's iteration where ranks are slow and links take time, and says where the time goes.
//! Beside that way stand [`windows`], the offline packing of whole data sets, and [`balance`], plain data parallelism
//! over equal replicas, without a profile.
//!
//! A module uses only those before it in the list below; packing looks ahead with the simulator of stage 7, and
//! planning with the transfers of stage 8, which is why `schedule` and `layout` stand before them.
//!
//! The core knows no Python, opens no file, prints nothing and reads no clock: a plan depends on its inputs
//! alone, and the same inputs give the same bytes.
//!
//! ```
//! use hydraulis_core::{cost, lengths, plan, schedule, spec};
//!
//! let cluster = spec::Cluster::new(64, 8)?;
//! let planner = plan::Planner::new(cost::preset("llama-32b-a800")?, cluster, None)?;
//! let batch = lengths::Batch::new(&[31_000, 12_000, 900, 900, 450, 80], None)?;
//!
//! let plan = planner.plan(&batch)?;
//! assert!(planner.check(&plan, &batch).is_empty());
//! assert!(plan.iteration_ms >= plan.lower_bound.ms);
//!
//! let first = &plan.replicas[0];
//! let list = schedule::instructions(0, first.scheme.stages(), first.micro_batches.len());
//! assert!(matches!(list[0], schedule::Instruction::Forward { micro_batch: 0 }));
//! assert_eq!(plan.positions().len(), 64);
//! # Ok::<(), hydraulis_core::Error>(())
//! ```

#![forbid(unsafe_code)]

mod error;
mod linear;
mod units;
mod watch;

pub mod spec;

pub mod lengths;

pub mod windows;

pub mod balance;

pub mod cost;

pub mod strategy;

pub mod schedule;

pub mod layout;

pub mod capacity;

pub mod pack;

pub mod dispatch;

pub mod plan;

pub mod simulation;

pub mod propose;

pub mod lookahead;

pub use error::{Error, ErrorKind, FitError, LayoutError, LinkError, ProfileError, Result, StrategyError, WindowError};
pub use units::{Millis, Tokens};
pub use watch::Watch;
