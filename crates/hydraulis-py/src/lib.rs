//! The extension module `hydraulis._core`: take, detach from the GIL, map errors, give.
//!
//! No algorithm lives here, and no default that the core does not have.

use pyo3::prelude::*;

mod arrays;
mod balance;
mod cost;
mod effort;
mod errors;
mod fit;
mod gil;
mod layout;
mod link;
mod lookahead;
mod network;
mod pickle;
mod plan;
mod planner;
mod propose;
mod schedule;
mod simulation;
mod spec;
mod transfer;
mod windows;

/// The native core of Hydraulis.
#[pymodule]
mod _core {
    /// The longest sequence that a batch accepts, in tokens.
    #[pymodule_export]
    const LONGEST_SEQUENCE: i64 = hydraulis_core::lengths::LONGEST_SEQUENCE;

    #[pymodule_export]
    use crate::balance::{Balance, balance};
    #[pymodule_export]
    use crate::cost::{CostProfile, Efficiency, ModelShape};
    #[pymodule_export]
    use crate::effort::Effort;
    #[pymodule_export]
    use crate::fit::{CostFit, fit_costs, micro_batches_to_measure};
    #[pymodule_export]
    use crate::layout::{HeldSlice, Home, HomeSlice, Parameter, ParameterTable, Position, held_slices};
    #[pymodule_export]
    use crate::link::{Link, LinkRates};
    #[pymodule_export]
    use crate::lookahead::WindowPlan;
    #[pymodule_export]
    use crate::network::Network;
    #[pymodule_export]
    use crate::plan::{Guess, Plan, Replica};
    #[pymodule_export]
    use crate::planner::Planner;
    #[pymodule_export]
    use crate::propose::{LengthHistogram, PaperStrategy, Proposal, ProposedStrategy, propose, propose_paper};
    #[pymodule_export]
    use crate::schedule::{Backward, Exchange, Forward, Span};
    #[pymodule_export]
    use crate::simulation::{GpuTime, RankMemory, Simulation, StageRun, Trip};
    #[pymodule_export]
    use crate::spec::{Cluster, LayerSplit, Scheme, Strategy};
    #[pymodule_export]
    use crate::transfer::{BucketTransfer, Trade, transfer};
    #[pymodule_export]
    use crate::windows::{Windows, pack_windows};
}
