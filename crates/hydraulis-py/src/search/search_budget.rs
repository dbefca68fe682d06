//! `SearchBudget`.

use hydraulis_core::spec;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::convert::integers::Integer;

/// Limits of a planner's work on one batch, counted in units of work: the same plan on any machine.
///
/// Every limit, zero too, gives a valid plan and a valid lower bound; a lower limit gives a longer iteration or a
/// weaker bound. The default of each limit is that of `SearchBudget.ONLINE`.
///
/// Args:
///     refinements: Packings of replicas during the refinement of one strategy.
///     candidates: Strategies that a search dispatches and packs, at least one.
///     dual_solves: Linear programs solved for a bound, each with other integer numbers of replicas and micro-batches.
///     exchanges: Planned exchanges between two batches of a lookahead, per batch.
///
/// Raises:
///     InvalidInputError: A limit is below 0 (code `argument_invalid`).
#[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
#[pyclass(frozen, eq, module = "hydraulis")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SearchBudget(pub(crate) spec::SearchBudget);

#[pymethods]
impl SearchBudget {
    #[new]
    #[pyo3(signature = (*, refinements=None, candidates=None, dual_solves=None, exchanges=None))]
    fn new(
        py: Python<'_>,
        refinements: Option<Integer>,
        candidates: Option<Integer>,
        dual_solves: Option<Integer>,
        exchanges: Option<Integer>,
    ) -> PyResult<SearchBudget> {
        let count = |name, given: Option<Integer>, online| given.map_or(Ok(online), |value| value.count(py, name));
        let online = spec::SearchBudget::ONLINE;
        Ok(SearchBudget(spec::SearchBudget {
            refinements: count("refinements", refinements, online.refinements)?,
            candidates: count("candidates", candidates, online.candidates)?,
            dual_solves: count("dual_solves", dual_solves, online.dual_solves)?,
            exchanges: count("exchanges", exchanges, online.exchanges)?,
            ..online
        }))
    }

    /// Default budget, small enough for a training loop to overlap the planning.
    #[classattr]
    #[expect(non_snake_case, reason = "a constant of the class")]
    fn ONLINE() -> SearchBudget {
        SearchBudget(spec::SearchBudget::ONLINE)
    }

    /// Budget of `prove=True`: the plan is mostly proven to be within half a percent of the best one.
    #[classattr]
    #[expect(non_snake_case, reason = "a constant of the class")]
    fn PROOF() -> SearchBudget {
        SearchBudget(spec::SearchBudget::PROOF)
    }

    /// Packings of replicas during the refinement of one strategy.
    #[getter]
    fn refinements(&self) -> usize {
        self.0.refinements
    }

    /// Strategies that a search dispatches and packs, at least one.
    #[getter]
    fn candidates(&self) -> usize {
        self.0.candidates
    }

    /// Linear programs solved for a bound, each with other integer numbers of replicas and micro-batches.
    #[getter]
    fn dual_solves(&self) -> usize {
        self.0.dual_solves
    }

    /// Planned exchanges between two batches of a lookahead, per batch.
    #[getter]
    fn exchanges(&self) -> usize {
        self.0.exchanges
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<((), Bound<'py, PyDict>)> {
        let named = PyDict::new(py);
        for (name, count) in self.limits() {
            named.set_item(name, count)?;
        }
        Ok(((), named))
    }

    fn __repr__(&self) -> String {
        format!("SearchBudget({})", self.limits().map(|(name, count)| format!("{name}={count}")).join(", "))
    }
}

impl SearchBudget {
    fn limits(&self) -> [(&'static str, usize); 4] {
        let spec::SearchBudget { refinements, candidates, dual_solves, exchanges, .. } = self.0;
        [
            ("refinements", refinements),
            ("candidates", candidates),
            ("dual_solves", dual_solves),
            ("exchanges", exchanges),
        ]
    }
}
