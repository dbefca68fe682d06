//! `Effort`.

use hydraulis_core::search;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::convert::arrays::from_zero;

/// How much a planner looks at, counted in work: the same on any machine.
///
/// Any limits, zeros too, give valid plans and valid bounds; lower ones give longer iterations, or weaker bounds. What is
/// left out is that of `Effort.ONLINE`.
///
/// Args:
///     refinements: replicas packed anew while one strategy is refined.
///     attempts: strategies planned by a search; one always is.
///     markets: markets looked at for a bound: how often replicas and micro-batches are made whole.
///     exchanges: exchanges between two batches of a planning window that are planned, for each of its batches.
///
/// Raises:
///     InvalidInputError: one is below 0 (code `count_negative`).
#[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
#[pyclass(frozen, eq, module = "hydraulis")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Effort(pub(crate) search::Effort);

#[pymethods]
impl Effort {
    #[new]
    #[pyo3(signature = (*, refinements=None, attempts=None, markets=None, exchanges=None))]
    fn new(
        py: Python<'_>,
        refinements: Option<i64>,
        attempts: Option<i64>,
        markets: Option<i64>,
        exchanges: Option<i64>,
    ) -> PyResult<Effort> {
        let count = |name, given: Option<i64>, online| given.map_or(Ok(online), |value| from_zero(py, name, value));
        let online = search::Effort::ONLINE;
        Ok(Effort(search::Effort {
            refinements: count("refinements", refinements, online.refinements)?,
            attempts: count("attempts", attempts, online.attempts)?,
            markets: count("markets", markets, online.markets)?,
            exchanges: count("exchanges", exchanges, online.exchanges)?,
        }))
    }

    /// What a training loop does not notice: the default.
    #[classattr]
    #[expect(non_snake_case, reason = "a constant of the class")]
    fn ONLINE() -> Effort {
        Effort(search::Effort::ONLINE)
    }

    /// What it takes to prove plans within half a percent of the best, most of the time: `prove=True`.
    #[classattr]
    #[expect(non_snake_case, reason = "a constant of the class")]
    fn PROOF() -> Effort {
        Effort(search::Effort::PROOF)
    }

    /// Replicas packed anew while one strategy is refined.
    #[getter]
    fn refinements(&self) -> usize {
        self.0.refinements
    }

    /// Strategies planned by a search; one always is.
    #[getter]
    fn attempts(&self) -> usize {
        self.0.attempts
    }

    /// Markets looked at for a bound: how often replicas and micro-batches are made whole.
    #[getter]
    fn markets(&self) -> usize {
        self.0.markets
    }

    /// Exchanges between two batches of a planning window that are planned, for each of its batches.
    #[getter]
    fn exchanges(&self) -> usize {
        self.0.exchanges
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<((), Bound<'py, PyDict>)> {
        let search::Effort { refinements, attempts, markets, exchanges } = self.0;
        let named = PyDict::new(py);
        for (name, count) in
            [("refinements", refinements), ("attempts", attempts), ("markets", markets), ("exchanges", exchanges)]
        {
            named.set_item(name, count)?;
        }
        Ok(((), named))
    }

    fn __repr__(&self) -> String {
        let search::Effort { refinements, attempts, markets, exchanges } = self.0;
        format!("Effort(refinements={refinements}, attempts={attempts}, markets={markets}, exchanges={exchanges})")
    }
}
