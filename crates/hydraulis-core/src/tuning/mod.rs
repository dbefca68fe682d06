//! Static tuning: exact choices under a memory limit for a model that always sees the same length.
//!
//! - [`choose_layers`]: one option for each layer (degrees, sharding, recomputation) by dynamic programming over the
//!   undominated pairs of memory and time that a bound leaves. Galvatron (arXiv 2211.13878) and OSDP (2209.13258) solve
//!   the same recurrence over a dense table of megabytes.
//! - [`LayerMixes`]: all undominated numbers of identical layers under each option, in memory, time of a micro-batch and
//!   time of the one that also reduces gradients.
//! - [`PipelineSplit`]: layers and mixes of a pipeline's stages so that a step ends earliest (Galvatron-BMW, 2307.02031).
//! - [`uniform_plans`]: one scheme for all replicas, and their micro-batches, by the costs of a profile.
//! - [`recompute`]: the cheapest order of forwards, recomputations and backwards of a chain that keeps some inputs and
//!   some whole layers (Rotor, Beaumont et al. 2020).
//! - [`StageSplit`]: layers of a pipeline over groups of ranks of different speed and memory, and [`share`]: whole
//!   micro-batches over pipelines of different speed (the lower level of Malleus, 2410.13333).

mod layer_bound;
mod layer_choice;
mod layer_mix;
mod pipeline;
mod recompute;
mod stage_split;
mod uniform;

pub use layer_choice::{LayerChoice, LayerOption, LayerProblem, NoLayerChoice, choose_layers};
pub use layer_mix::{Goal, LayerMixes, Mix, MixOption};
pub use pipeline::{PipelineSplit, PipelineStage};
pub use recompute::{Chain, RecomputeTable, recompute};
pub use stage_split::{Stage, StageSplit, share};
pub use uniform::{UniformPlan, uniform_plans};
