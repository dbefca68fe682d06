//! Whole searches: degrees, sharding and recomputation of each layer, stages, micro-batches and batch for one length,
//! under a memory limit (Galvatron). Objective: samples a second by the reference's own cost formulas.
//!
//! Two kinds of files:
//!
//! - `common_inputs` and `cases`: the profile is the document's `profiles`, or else the file
//!   `galvatron_test_profiles.json` in the same folder. Each case is a whole search, and each of its `tasks` the part of
//!   the space with one pipeline degree and one greatest tensor degree. Cases whose name begins with `coarse` give all
//!   layers one strategy.
//! - `computation` with `reproduced` and `memory_sweep`: a measured profile, and searches for several memory limits.

mod cost;
mod degrees;
mod document;
mod inputs;
mod least_squares;
mod profile;
mod refine;
mod search;
mod tables;

pub(super) use document::{instances, is_kind};
