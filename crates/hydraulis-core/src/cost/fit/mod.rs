//! Fits coefficients to timed micro-batches, or refuses with the measurements that are missing.
//!
//! Errors are relative to the prediction: an absolute error would let a long micro-batch drown the short ones, and an
//! error relative to the measurement would favour low predictions. Coefficients are at least zero: a negative one would
//! make some length cheaper than none. Times of a busy machine have outliers, nearly all of them slow. The fit
//! therefore begins from the least trimmed squares, for which `(n + 3) / 2` of `n` points must agree, and then weights
//! each point by its agreement with the rest (an MM-estimator: Yohai 1987).
//!
//! Where small micro-batches all take the same time, the others alone determine the three coefficients: see [`least`].
//!
//! A fit states its uncertainty: an interval for each coefficient, the error on points that it has not seen, and the
//! range of the points, beyond which a prediction is an extrapolation. Several schemes of one model are fitted
//! together, because they do the same work: see [`fit_schemes`].

mod cost_fit;
mod least;
mod measurement;
mod robust;
mod shared;
mod to_measure;

pub use cost_fit::{CostFit, Interval};
pub use measurement::{MeasuredRange, Measurement};
pub use shared::fit_schemes;
pub use to_measure::micro_batches_to_measure;

use crate::error::Result;
use least::Split;

/// The coefficients of one scheme, from its own measurements alone.
pub fn fit(measurements: &[Measurement]) -> Result<CostFit> {
    measurement::check(measurements, None)?;
    let split = Split::of(measurements);
    let fit = robust::fit_alone(&split.rest).ok_or_else(|| measurement::unidentified(measurements, None))?;
    split.joined(fit, measurements).explained(None)
}
