//! What measured times are refused for when costs are fitted to them.

use thiserror::Error;

/// An error of fitting costs to measured times.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Error)]
pub enum FitError {
    /// Too few or unusable measurements.
    #[error("cannot fit the cost{of}: {why}; measure at least four micro-batches of different lengths and mixes")]
    Unusable {
        /// Of which scheme, if it is known.
        of: String,
        /// What is wrong with the points.
        why: String,
    },
    /// Points that leave a coefficient open.
    #[error(
        "cannot fit the cost{of}: {points} timed micro-batches with {totals} different totals do not tell a, b and c apart, which takes three that are no mixture of one another; measure single sequences of several lengths, packs of short ones, or more schemes together"
    )]
    Unidentified {
        /// Of which scheme, if it is known.
        of: String,
        /// Micro-batches measured.
        points: usize,
        /// Different numbers of tokens among them.
        totals: usize,
    },
    /// Times that follow another law.
    #[error(
        "cannot fit the cost{of}: measured times differ from a s^2 + b s + c by {:.0} % (root mean square), the limit is {:.0} %; measure again on quieter ranks, with more passes",
        100.0 * error,
        100.0 * limit
    )]
    Unexplained {
        /// Of which scheme, if it is known.
        of: String,
        /// The relative error.
        error: f64,
        /// The greatest that is accepted.
        limit: f64,
    },
}
