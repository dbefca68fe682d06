//! The benchmarks of Hydraulis: workloads, baselines to compare with, and one judge for all methods.
//!
//! The modules, in the order of a comparison:
//!
//! | takes | gives | module |
//! |---|---|---|
//! | a distribution or a file | the batches of a run | [`workload`] |
//! | costs, a batch | another method's decision | [`baseline`] |
//! | a name | the planner or the baseline of that name | [`planner_under_test`] |
//! | a decision, a batch | its simulated time, and every promise that it breaks | [`judge`] |
//! | layouts, the rates of the links | the time of transfers | [`link`] |
//! | a run | one record per batch and planner under test | [`run`], [`record`] |
//! | records | a table | [`summary`] |
//! | a command line | a comparison, from the workload to the table | [`comparison`] |
//! | costs, a batch | the search next to every mix of few schemes | [`exhaustive`] |
//! | records of clusters and batches of several sizes | the growth of planning time | [`scale`] |
//! | pipelines of several sizes | the speed of their simulation | [`simulation_rate`] |
//! | other systems' tuning problems | the core's solutions next to theirs | [`tune`] |
//!
//! Baselines are re-implemented from the descriptions of their methods. Each decides by its own rules, and one judge
//! applies the same caps, simulated time and checker of the core to all of them. If a description leaves a choice open,
//! the implementation takes the choice that is better for the baseline. No baseline minimises transfers; with a link, a
//! run reports the transfer times of all methods by one link model.
//!
//! ```
//! use hydraulis_bench::{planner_under_test::{Name, PlannerUnderTest}, judge::Judge, workload};
//! use hydraulis_core::{cost, spec};
//!
//! let cost = cost::CostModel::new(cost::preset("llama-32b-a800")?, spec::Cluster::new(64, 8)?);
//! let batches = workload::draw(&workload::Lognormal { mu: 6.2, sigma: 1.2, longest: 32_768 }, 0, 200_000, 2)?;
//!
//! let mut balanced = PlannerUnderTest::new(Name::StaticBalanced, &cost, None, &batches, None)?;
//! let decision = balanced.decide(&batches[0])?;
//! let verdict = Judge::new(&cost, None).judge(&decision, &batches[0])?;
//! assert_eq!(verdict.status(), "ok");
//! # Ok::<(), hydraulis_bench::Error>(())
//! ```

#![forbid(unsafe_code)]

mod error;
mod numbers;

pub mod link;

pub mod workload;

pub mod baseline;

pub mod planner_under_test;

pub mod judge;

pub mod record;

pub mod run;

pub mod summary;

pub mod comparison;

pub mod exhaustive;

pub mod scale;

pub mod simulation_rate;

pub mod tune;

pub use error::{Error, Result};
