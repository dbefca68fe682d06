//! One line per batch and planner under test.

use serde::Serialize;

/// The judged answer of a planner under test for one batch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Record {
    /// Index of the batch in the workload.
    pub batch: usize,
    /// Number of sequences.
    pub sequences: usize,
    /// Number of tokens.
    pub tokens: u64,
    /// Tokens of the longest sequence.
    pub longest: u64,
    /// Name of the planner under test.
    pub planner: String,
    /// The chosen strategy; strategies that run one after another are joined by `;`.
    pub strategy: String,
    /// CPU time of the planning call, on one thread.
    pub plan_ms: f64,
    /// The simulated time of the iteration.
    pub iteration_ms: f64,
    /// Exposed time of the parameter gather and gradient reduction by the link model; null without one.
    pub transfer_ms: Option<f64>,
    /// Time of all transfers without overlap; null without a link model.
    pub transfer_alone_ms: Option<f64>,
    /// Time from updated parameters to reduced gradients at their owners, iteration plus exposed transfers; null
    /// without a link.
    pub step_ms: Option<f64>,
    /// Lower bound over the planner's strategies; null for baselines.
    pub lower_bound_ms: Option<f64>,
    /// Relative gap to that bound of the step, or of the iteration without a link; null for baselines.
    pub gap: Option<f64>,
    /// Number of micro-batches of all replicas.
    pub micro_batches: usize,
    /// `ok`, or the codes of all broken promises joined by `,`.
    pub status: String,
}

impl Record {
    /// Whether every promise is kept.
    pub fn is_ok(&self) -> bool {
        self.status == "ok"
    }

    /// Returns the JSON form, on one line.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}
