//! The result of a fit.

use super::MeasuredRange;
use super::measurement::{features, of};
use crate::error::{FitError, Result};
use crate::linear::dot;
use crate::spec::Scheme;
use crate::units::{Millis, Tokens};

/// Times with a typical error of half the prediction follow another law.
const MOST_ERROR: f64 = 0.5;

/// The least time of a token: a profile must have one above 0, also after its times are scaled. A million tokens take a
/// microsecond.
const LEAST_TOKEN_MS: f64 = 1e-9;

/// The interval of a coefficient in 95 of 100 such measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower end, at least 0.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Coefficients, their errors on the measurements, and their uncertainty.
#[derive(Clone, Debug, PartialEq)]
pub struct CostFit {
    /// `a`, in ms per squared token.
    pub quadratic_ms_per_token2: f64,
    /// `b`, in ms per token.
    pub linear_ms_per_token: f64,
    /// `c`, in ms per micro-batch.
    pub fixed_ms: f64,
    /// `d`, in ms: the least time of a micro-batch; 0 if the points show none.
    pub least_ms: f64,
    /// Intervals of 95 % for `a`, `b` and `c`, from the points' noise alone: the law's own error is not in them.
    pub intervals: [Interval; 3],
    /// Root mean square of the relative errors, weighted as in the fit.
    pub relative_error: f64,
    /// Median of the relative errors on points that the coefficients were fitted without; none if too few points
    /// remain.
    pub held_out_error: Option<f64>,
    /// Measured over predicted time, less 1, by point.
    pub residuals: Vec<f64>,
    /// Number of points that agree so little with the rest that their weight is 0.
    pub outliers: usize,
    /// Range of the points.
    pub range: MeasuredRange,
}

impl CostFit {
    /// The three coefficients in their order.
    pub(super) fn coefficients(&self) -> [f64; 3] {
        [self.quadratic_ms_per_token2, self.linear_ms_per_token, self.fixed_ms]
    }

    /// The time of a micro-batch.
    pub fn predict(&self, sequences: &[Tokens]) -> Millis {
        Millis(dot(&features(sequences), &self.coefficients()).max(self.least_ms))
    }

    /// This fit, if the law explains the points at all. Times that do not grow with the tokens get the least time of a
    /// token.
    pub(super) fn explained(mut self, scheme: Option<Scheme>) -> Result<CostFit> {
        if self.relative_error > MOST_ERROR {
            return Err(FitError::Unexplained { of: of(scheme), error: self.relative_error, limit: MOST_ERROR }.into());
        }
        if self.quadratic_ms_per_token2 + self.linear_ms_per_token < LEAST_TOKEN_MS {
            self.linear_ms_per_token = LEAST_TOKEN_MS;
        }
        Ok(self)
    }
}

/// Student's t at 97.5 % for 1 to 30 degrees of freedom; beyond these the normal distribution is close enough.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];
/// The same for the normal distribution.
pub(super) const NORMAL: f64 = 1.960;

/// The half-width of an interval of 95 %, in standard errors; without degrees of freedom it is unbounded.
pub(super) fn t_95(degrees_of_freedom: usize) -> f64 {
    match degrees_of_freedom {
        0 => f64::INFINITY,
        n => T.get(n - 1).copied().unwrap_or(NORMAL),
    }
}
