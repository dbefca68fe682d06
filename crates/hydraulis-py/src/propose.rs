//! `propose`, and the length histograms that batches are drawn from.

use std::num::NonZeroUsize;

use hydraulis_core::batch;
use hydraulis_core::propose::{Progress, Request};
use hydraulis_core::search::Planner;
use hydraulis_core::spec::MemoryRule;
use hydraulis_core::{Tokens, propose as core};
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::convert::arrays::{Column, Whole, batches, integers};
use crate::convert::errors::raise;
use crate::convert::gil::{cancellable, detached, interruptible};
use crate::convert::integers::Integer;
use crate::convert::{Reduced, made_by};
use crate::cost::profile::CostProfile;
use crate::plan::Extrapolation;
use crate::spec::Cluster;

/// Number of occurrences of each length in a data set.
///
/// Args:
///     lengths: Lengths in tokens, any one-dimensional integer array or list; a length may occur several times.
///     counts: Number of occurrences of each length; default 1.
///
/// Raises:
///     InvalidInputError: An argument is out of range: `batch_empty` or `lengths_invalid`.
#[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
#[pyclass(frozen, eq, module = "hydraulis")]
#[derive(Debug, PartialEq)]
pub(crate) struct LengthHistogram(batch::LengthHistogram);

/// A short list of strategies for a whole run, and its cost relative to a search for each batch.
#[pyclass(frozen, get_all, module = "hydraulis")]
#[derive(Debug)]
pub(crate) struct Proposal {
    /// Strategies, in an order in which every prefix of the list serves well too.
    strategies: Vec<Py<ProposedStrategy>>,
    /// Mean iteration time over all batches, given and drawn, with the whole list, in ms.
    expected_ms: f64,
    /// Mean iteration time over the same batches with a search for each batch, in ms.
    search_ms: f64,
    /// Relative cost of the list: `expected_ms / search_ms - 1`.
    cost: f64,
    /// Most tokens of a sequence that the list admits.
    longest_admitted: u64,
    /// The furthest extrapolation beyond the profile's measurements in the plans of all batches; None if there is none.
    extrapolation: Option<Extrapolation>,
    /// Number of strategies to choose from.
    candidates: usize,
}

/// The fields in their order.
type ProposalFields = (Vec<Py<ProposedStrategy>>, f64, f64, f64, u64, Option<Extrapolation>, usize);

/// One strategy of a proposal.
#[pyclass(frozen, get_all, module = "hydraulis")]
#[derive(Debug)]
pub(crate) struct ProposedStrategy {
    /// Strategy as text.
    strategy: String,
    /// Indices of the given batches for which it is the fastest of the list.
    batches: Vec<usize>,
    /// Share of all batches, given and drawn, for which it is the fastest of the list.
    share: f64,
    /// Mean iteration time over all batches with this strategy and those before it, in ms.
    expected_ms: f64,
}

#[pymethods]
impl LengthHistogram {
    #[new]
    #[pyo3(signature = (lengths, counts=None))]
    fn new(py: Python<'_>, lengths: &Bound<'_, PyAny>, counts: Option<&Bound<'_, PyAny>>) -> PyResult<LengthHistogram> {
        let lengths = integers("lengths", Whole::Lengths, lengths)?;
        let counts = counts.map(|counts| integers("counts", Whole::Counts, counts)).transpose()?;
        detached(py, || batch::LengthHistogram::new(&lengths, counts.as_deref())).map(LengthHistogram)
    }

    /// Number of sequences.
    #[getter]
    fn sequences(&self) -> u64 {
        self.0.sequences()
    }

    /// Most tokens of a sequence.
    #[getter]
    fn longest(&self) -> u64 {
        self.0.longest().0
    }

    /// Draws batches of sequences with replacement.
    ///
    /// Args:
    ///     tokens_per_batch: Number of tokens at which a batch is complete; its last sequence stays whole.
    ///     count: Number of batches.
    ///     seed: Seed of the draw; equal seeds give equal batches on every machine.
    ///
    /// Raises:
    ///     InvalidInputError: A number is below 1, a batch has more than 10,000,000,000 tokens, or all batches together about
    ///         100,000,000 sequences (code `argument_invalid`).
    #[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
    #[pyo3(
        signature = (*, tokens_per_batch, count, seed=Integer::Whole(0)),
        text_signature = "($self, *, tokens_per_batch, count, seed=0)"
    )]
    fn sample(
        &self,
        py: Python<'_>,
        tokens_per_batch: Integer,
        count: Integer,
        seed: Integer,
    ) -> PyResult<Vec<Py<PyArray1<i64>>>> {
        let tokens = Tokens(tokens_per_batch.positive(py, "tokens_per_batch")?);
        let (count, seed) = (count.positive(py, "count")?, seed.count(py, "seed")?);
        let batches = interruptible(py, |cancellation| self.0.sample(tokens, count, seed, cancellation))?;
        let lengths = |batch: &batch::Batch| Column::from_counts(py, batch.tokens().iter().map(|tokens| tokens.0));
        Ok(batches.iter().map(|batch| lengths(batch).get(py)).collect())
    }

    fn __getnewargs__(&self) -> (Vec<u64>, Vec<u64>) {
        self.0.entries().map(|(length, count)| (length.0, count)).unzip()
    }

    fn __repr__(&self) -> String {
        format!("LengthHistogram({} sequences, the longest {})", self.sequences(), self.longest())
    }
}

/// Proposes the strategies with the shortest mean iteration over these batches, and over batches drawn from them.
///
/// Args:
///     profile: Cost profile of the model.
///     cluster: Cluster of the run.
///     batches: Lengths of each batch, as `Planner.plan` takes them; they represent the batches of the run.
///     k: Most strategies of the list.
///     context: Length in tokens that one strategy has to admit; default the longest sequence, which is also the least
///         value.
///     memory: Memory rule, as for `Planner`.
///     progress: Callback that receives a step ("search" or "choose"), the completed amount and the total; an exception
///         that it raises ends the work.
///
/// Raises:
///     InvalidInputError: An argument is out of range: the codes of `Planner.plan`, with the batch, or `argument_invalid`.
///     InfeasibleError: No strategy admits the longest sequence (`sequence_too_long`), or no scheme
///         leaves memory for a token (`scheme_too_large`).
#[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
#[pyfunction]
#[pyo3(signature = (profile, cluster, batches, k, *, context=None, memory="per_micro_batch", progress=None))]
#[expect(clippy::too_many_arguments, reason = "Python gives them by name")]
pub(crate) fn propose(
    py: Python<'_>,
    profile: &CostProfile,
    cluster: &Cluster,
    #[pyo3(from_py_with = batches)] batches: Vec<Vec<i64>>,
    k: Integer,
    context: Option<Integer>,
    memory: &str,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Proposal> {
    let count = NonZeroUsize::new(k.positive(py, "k")?).expect("a positive number is not zero");
    let context = context.map(|context| context.positive(py, "context")).transpose()?.map(Tokens);
    let memory: MemoryRule = memory.parse().map_err(|error| raise(py, &error))?;
    let (profile, cluster) = (profile.0.clone(), cluster.0.clone());
    let proposal = cancellable(py, progress, move |cancellation, report| {
        let batches = batch::Batch::several(&batches, None)?;
        let search = Planner::search(profile, cluster)?.with_memory(memory);
        core::propose(&search, &Request { batches: &batches, count, context }, cancellation, &mut |progress| {
            match progress {
                Progress::Searched { batches, of } => report("search", batches, of),
                Progress::Chosen(chosen) => report("choose", chosen, count.get()),
            }
        })
    })?;
    Proposal::new(py, &proposal)
}

impl Proposal {
    fn new(py: Python<'_>, proposal: &core::Proposal) -> PyResult<Proposal> {
        let strategy = |one: &core::Proposed| {
            let (strategy, batches) = (one.strategy.to_string(), one.batches.clone());
            Py::new(py, ProposedStrategy { strategy, batches, share: one.share, expected_ms: one.expected_ms.0 })
        };
        Ok(Proposal {
            strategies: proposal.strategies.iter().map(strategy).collect::<PyResult<_>>()?,
            expected_ms: proposal.expected_ms().0,
            search_ms: proposal.search_ms.0,
            cost: proposal.cost(),
            longest_admitted: proposal.longest_admitted.0,
            extrapolation: proposal.extrapolation.map(Extrapolation),
            candidates: proposal.candidates,
        })
    }
}

#[pymethods]
impl Proposal {
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        let Proposal { expected_ms, search_ms, cost, longest_admitted, extrapolation, candidates, .. } = *self;
        let strategies: Vec<_> = self.strategies.iter().map(|one| one.clone_ref(py)).collect();
        let fields = (strategies, expected_ms, search_ms, cost, longest_admitted, extrapolation, candidates);
        made_by::<Proposal>(py, "_of", fields)
    }

    #[classmethod]
    fn _of(_class: &Bound<'_, PyType>, fields: ProposalFields) -> Proposal {
        let (strategies, expected_ms, search_ms, cost, longest_admitted, extrapolation, candidates) = fields;
        Proposal { strategies, expected_ms, search_ms, cost, longest_admitted, extrapolation, candidates }
    }

    fn __repr__(&self) -> String {
        let (strategies, ms) = (self.strategies.len(), self.expected_ms);
        // Adding 0 turns a rounded negative zero into zero.
        let cost = (1e4 * self.cost).round() / 100.0 + 0.0;
        format!("Proposal({strategies} strategies, {ms:.1} ms, {cost:.2} % over search)")
    }
}

#[pymethods]
impl ProposedStrategy {
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        let fields = (&self.strategy, self.batches.clone(), self.share, self.expected_ms);
        made_by::<ProposedStrategy>(py, "_of", fields)
    }

    #[classmethod]
    fn _of(_class: &Bound<'_, PyType>, fields: (String, Vec<usize>, f64, f64)) -> ProposedStrategy {
        let (strategy, batches, share, expected_ms) = fields;
        ProposedStrategy { strategy, batches, share, expected_ms }
    }

    fn __repr__(&self) -> String {
        format!("ProposedStrategy('{}', {:.1} % of the batches)", self.strategy, 100.0 * self.share)
    }
}
