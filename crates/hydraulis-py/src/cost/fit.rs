//! Fits cost coefficients to timed micro-batches.

use hydraulis_core::cost;
use hydraulis_core::{Millis, Tokens};
use pyo3::prelude::*;

use crate::convert::gil::detached;
use crate::convert::integers::Integer;
use crate::spec::Scheme;

/// Lengths of a micro-batch's sequences, and its time in ms.
type Point = (Vec<u64>, f64);

/// Fitted coefficients of one scheme, their errors on the measurements, and their confidence intervals.
#[pyclass(frozen, module = "hydraulis._core")]
#[derive(Debug)]
pub(crate) struct CostFit(cost::CostFit);

#[pymethods]
impl CostFit {
    /// Coefficient `a`, in ms per squared token.
    #[getter]
    fn quadratic_ms_per_token2(&self) -> f64 {
        self.0.quadratic_ms_per_token2
    }

    /// Coefficient `b`, in ms per token.
    #[getter]
    fn linear_ms_per_token(&self) -> f64 {
        self.0.linear_ms_per_token
    }

    /// Coefficient `c`, in ms per micro-batch.
    #[getter]
    fn fixed_ms(&self) -> f64 {
        self.0.fixed_ms
    }

    /// Least time of a micro-batch in ms; 0 if the points show none.
    #[getter]
    fn least_ms(&self) -> f64 {
        self.0.least_ms
    }

    /// Low and high end of the 95 % confidence intervals of `a`, `b` and `c`.
    #[getter]
    fn intervals(&self) -> Vec<(f64, f64)> {
        self.0.intervals.iter().map(|interval| (interval.low, interval.high)).collect()
    }

    /// Root mean square of the relative errors.
    #[getter]
    fn relative_error(&self) -> f64 {
        self.0.relative_error
    }

    /// Median of the relative errors on held-out points; None if too few were measured.
    #[getter]
    fn held_out_error(&self) -> Option<f64> {
        self.0.held_out_error
    }

    /// Relative residual of each point: measured over predicted time, less 1.
    #[getter]
    fn residuals(&self) -> Vec<f64> {
        self.0.residuals.clone()
    }

    /// Number of points that the robust fit gives no weight.
    #[getter]
    fn outliers(&self) -> usize {
        self.0.outliers
    }

    /// The JSON form of a profile's `fit`.
    fn quality_json(&self) -> String {
        cost::FitQuality::of(&self.0).to_json()
    }
}

/// Fits the coefficients of several schemes of one model together, robust to outliers.
#[pyfunction]
pub(crate) fn fit_costs(py: Python<'_>, measured: Vec<(Py<Scheme>, Vec<Point>)>) -> PyResult<Vec<CostFit>> {
    let point = |(sequences, ms): Point| cost::Measurement {
        sequences: sequences.into_iter().map(Tokens).collect(),
        ms: Millis(ms),
    };
    let measured: Vec<_> = measured
        .into_iter()
        .map(|(scheme, points)| (scheme.get().0, points.into_iter().map(point).collect::<Vec<_>>()))
        .collect();
    let fits = detached(py, || cost::fit_schemes(&measured))?;
    Ok(fits.into_iter().map(CostFit).collect())
}

/// The most informative micro-batches for a fit: sequences of up to `longest` tokens, at most `tokens` per micro-batch.
#[pyfunction]
pub(crate) fn micro_batches_to_measure(
    py: Python<'_>,
    longest: Integer,
    tokens: Integer,
    number: Integer,
) -> PyResult<Vec<Vec<u64>>> {
    let (longest, tokens): (u64, u64) = (longest.count(py, "longest")?, tokens.count(py, "tokens")?);
    let number = number.count(py, "number")?;
    let mixes = cost::micro_batches_to_measure(Tokens(longest.max(1)), Tokens(tokens.max(1)), number);
    Ok(mixes.into_iter().map(|mix| mix.into_iter().map(|tokens| tokens.0).collect()).collect())
}
