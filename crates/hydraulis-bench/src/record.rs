//! One line per batch and planner under test.

use serde::Serialize;

/// What a planner under test made of one batch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Record {
    /// Place of the batch in the workload.
    pub batch: usize,
    /// Its sequences.
    pub sequences: usize,
    /// Its tokens.
    pub tokens: u64,
    /// Its longest sequence.
    pub longest: u64,
    /// The planner under test.
    pub planner: String,
    /// The strategy it chose; several that run one after another are joined by `;`.
    pub strategy: String,
    /// CPU time of the one call that decides, on one thread.
    pub plan_ms: f64,
    /// The simulated time of the iteration.
    pub iteration_ms: f64,
    /// What parameters on their way out and gradients on their way back add to the iteration by the link model; null
    /// without one.
    pub transfer_ms: Option<f64>,
    /// What they take one after another, nothing hidden; null without a link model.
    pub transfer_alone_ms: Option<f64>,
    /// From new parameters at home to all gradients at home: the iteration and what transfers add; null without a link model.
    pub step_ms: Option<f64>,
    /// What no plan over the planner's strategies can beat; null for baselines.
    pub lower_bound_ms: Option<f64>,
    /// How far the iteration is above that bound; null for baselines.
    pub gap: Option<f64>,
    /// Micro-batches of all replicas.
    pub micro_batches: usize,
    /// `ok`, or the codes of all broken promises joined by `,`.
    pub status: String,
}

impl Record {
    /// Whether every promise is kept.
    pub fn is_ok(&self) -> bool {
        self.status == "ok"
    }

    /// The JSON form, on one line.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}
