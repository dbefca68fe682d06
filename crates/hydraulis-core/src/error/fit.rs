//! Errors of fitting costs to measured times.

use thiserror::Error;

/// An error of fitting costs to measured times.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Error)]
pub enum FitError {
    /// The measurements are too few or unusable.
    #[error("cannot fit the cost{of}: {why}; measure at least four micro-batches of different lengths and mixes")]
    Unusable {
        /// The scheme, as the message names it; empty if it is unknown.
        of: String,
        /// Cause of the refusal.
        why: String,
    },
    /// The measurements leave a coefficient open.
    #[error(
        "cannot fit the cost{of}: {points} timed micro-batches with {totals} different totals do not determine a, b and c, which needs three linearly independent micro-batches; measure single sequences of several lengths, packs of short sequences, or more schemes together"
    )]
    Unidentified {
        /// The scheme, as the message names it; empty if it is unknown.
        of: String,
        /// Measured micro-batches.
        points: usize,
        /// Different token counts among them.
        totals: usize,
    },
    /// The times do not follow the cost model.
    #[error(
        "cannot fit the cost{of}: measured times differ from max(d, a s^2 + b s + c) by {:.0} % (root mean square), the limit is {:.0} %; measure again on idle ranks, with more passes",
        100.0 * error,
        100.0 * limit
    )]
    Unexplained {
        /// The scheme, as the message names it; empty if it is unknown.
        of: String,
        /// Relative error of the fit.
        error: f64,
        /// Largest accepted error.
        limit: f64,
    },
}
