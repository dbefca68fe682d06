//! The extension module `hydraulis._core`: it converts arguments, releases the GIL, converts errors and results.
//!
//! It contains no algorithm, and no default that the core does not have.

use pyo3::prelude::*;

mod batching;
mod comparison;
mod convert;
mod cost;
mod layout;
mod lookahead;
mod pipeline;
mod plan;
mod propose;
mod search;
mod simulate;
mod spec;
mod timing;
mod tuning;

/// The native core of Hydraulis.
#[pymodule]
mod _core {
    /// Most tokens of a sequence that a batch accepts.
    #[pymodule_export]
    const LONGEST_SEQUENCE: i64 = hydraulis_core::batch::LONGEST_SEQUENCE;

    #[pymodule_export]
    use crate::batching::balance::{Balance, balance};
    #[pymodule_export]
    use crate::batching::balance_options::BalanceOptions;
    #[pymodule_export]
    use crate::batching::windows::{Windows, pack_windows};
    #[pymodule_export]
    use crate::comparison::plan_bench;
    #[pymodule_export]
    use crate::convert::errors::error_codes;
    #[pymodule_export]
    use crate::cost::fit::{CostFit, fit_costs, micro_batches_to_measure};
    #[pymodule_export]
    use crate::cost::profile::{CostProfile, Efficiency, ModelShape};
    #[pymodule_export]
    use crate::layout::table::{
        LocalSlice, OptimizerShards, Parameter, ParameterTable, Position, ShardSlice, local_slices,
    };
    #[pymodule_export]
    use crate::layout::transfer::{BucketTransfer, Exchange, transfer};
    #[pymodule_export]
    use crate::lookahead::LookaheadPlan;
    #[pymodule_export]
    use crate::pipeline::{Backward, Forward, SendReceive, Span};
    #[pymodule_export]
    use crate::plan::{Extrapolation, Plan, Replica};
    #[pymodule_export]
    use crate::propose::{LengthHistogram, Proposal, ProposedStrategy, propose};
    #[pymodule_export]
    use crate::search::planner::Planner;
    #[pymodule_export]
    use crate::search::search_budget::SearchBudget;
    #[pymodule_export]
    use crate::simulate::iteration::{GpuTime, RankMemory, Simulation, StageRun, TransferSpan};
    #[pymodule_export]
    use crate::simulate::network::Network;
    #[pymodule_export]
    use crate::spec::{Cluster, LayerSplit, Scheme, Strategy};
    #[pymodule_export]
    use crate::timing::link::{Link, LinkRates};
    #[pymodule_export]
    use crate::tuning::uniform_plans;
}
