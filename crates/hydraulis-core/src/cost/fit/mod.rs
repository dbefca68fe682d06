//! From timed micro-batches to coefficients that can be trusted, or a refusal that says what to measure.
//!
//! Errors are relative to what is predicted: a long micro-batch would otherwise drown the short ones, and an error
//! relative to what was measured would favour low predictions. Coefficients are at least zero: a negative one would make
//! some length cheaper than none. Times of a busy machine have outliers, nearly all of them slow; so the fit begins from the
//! least trimmed squares, which nearly half of the points cannot move, and then weighs each point by how well it agrees
//! with the rest (an MM-estimator: Yohai 1987).
//!
//! What a fit does not know it says: an interval for each coefficient, the error on points that it has not seen, and the
//! range of the points, beyond which a prediction is a guess. Several schemes of one model are fitted together, because
//! they do the same work: see [`fit_schemes`].

mod cost_fit;
mod held_out;
mod measured_range;
mod measurement;
mod robust;
mod shared;
mod student;
mod to_measure;

pub use cost_fit::{CostFit, Interval};
pub use measured_range::MeasuredRange;
pub use measurement::Measurement;
pub use shared::fit_schemes;
pub use to_measure::micro_batches_to_measure;

use crate::error::Result;

/// The coefficients of one scheme, from its own measurements alone.
pub fn fit(measurements: &[Measurement]) -> Result<CostFit> {
    measurement::check(measurements, None)?;
    robust::fit_alone(measurements).ok_or_else(|| measurement::unidentified(measurements, None))?.explained(None)
}
