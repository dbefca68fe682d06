//! What Hydraulis is measured with: workloads, the baselines it is compared with, and one judge for all.
//!
//! The way of a comparison, and the modules in its order:
//!
//! | takes | gives | module |
//! |---|---|---|
//! | a distribution or a file | the batches of a run | [`workload`] |
//! | costs, a batch | what another method would do with it | [`baseline`] |
//! | a name | the planner or the baseline of that name | [`planner_under_test`] |
//! | a decision, a batch | its simulated time, and every promise that it breaks | [`judge`] |
//! | layouts, the rate of the links | what the transfers take | [`model`], [`link`] |
//! | a run | one record per batch and planner under test | [`run`], [`record`] |
//! | records | a table | [`summary`] |
//! | records of clusters and batches of several sizes | how planning time grows | [`scale`] |
//! | pipelines of several sizes | how fast they are simulated | [`simulation_rate`] |
//!
//! Baselines are re-implemented from the descriptions of their methods. Each decides by its own rules, and then
//! all are judged alike: the core's caps, the core's simulated time, the core's checker. Where a description
//! leaves a choice open, the choice is the one better for the baseline. No planner compared minimises transfers; a run
//! may state them beside the iteration, by one link model for all.
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

mod clock;
mod error;
mod numbers;

pub mod link;

pub mod workload;

pub mod profile;

pub mod baseline;

pub mod planner_under_test;

pub mod judge;

pub mod record;

pub mod run;

pub mod summary;

pub mod scale;

pub mod simulation_rate;

pub use error::{Error, Result};
