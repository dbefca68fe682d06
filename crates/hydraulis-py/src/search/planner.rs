//! `Planner`.

use hydraulis_core::{codes, plan, search, simulate, spec};

use hydraulis_core::batch::Batch;
use hydraulis_core::explain::explain_with_memory;
use hydraulis_core::search::RunLimit;
use hydraulis_core::spec::{MemoryRule, Strategy};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::convert::arrays::{Whole, integers};
use crate::convert::errors::{invalid, raise};
use crate::convert::gil::{detached, interruptible};
use crate::convert::integers::Integer;
use crate::cost::profile::CostProfile;
use crate::lookahead::{LookaheadPlan, Request};
use crate::pipeline::{Span, spans};
use crate::plan::Plan;
use crate::search::search_budget::SearchBudget;
use crate::simulate::iteration::{RankMemory, Simulation, simulate};
use crate::simulate::network::Network;
use crate::spec::{Cluster, GivenStrategy};
use crate::timing::link::Link;

/// Plans batches for one model on one cluster: over the profile's list of strategies, over another list, or by a search
/// over all sets of replicas of the profile's schemes.
///
/// A planner computes each pipeline capacity at its first use and stores it, so its first plans take longer than later
/// ones. For 64 GPUs and batches of 400,000 tokens the first plan takes 35 ms and later ones 6 ms over a list, 250 and
/// 80 ms by a search.
///
/// Args:
///     profile: Cost profile of the model.
///     cluster: Cluster of the plans.
///     strategies: Strategies to choose from, as text or `Strategy`; "search" for any strategy; default the profile's own.
///     max_strategies: Most distinct strategies of one run; each call of `plan` then takes those `used` so far.
///     memory: Memory rule of micro-batches. The per-micro-batch limit ("per_micro_batch") bounds each micro-batch by itself; the
///         in-flight limit ("in_flight") bounds any consecutive ones that a pipeline of even stages holds at once, so that it
///         admits longer sequences. Training runs plans of both.
///     link: Model of transfers; with it the planner minimises the step: the iteration and its exposed transfers.
///     budget: Limits of the work on each plan; default `SearchBudget.ONLINE`.
///     prove: Choice of `SearchBudget.PROOF`: a plan takes several times as long, and its lower bound is tighter.
///
/// Raises:
///     InvalidInputError: A strategy is malformed (code `strategy_invalid`), does not fit on the cluster
///         (`strategy_unplaceable`), or has a scheme that the profile lacks (`scheme_unknown`); the list is empty
///         (`no_strategies`); a scheme has more stages than the link's model has layers (`scheme_model_mismatch`); another
///         argument is out of range (`argument_invalid`).
///     InfeasibleError: No scheme, or no named one, leaves memory for a token (`scheme_too_large`), or every scheme needs
///         more GPUs than the cluster has (`strategy_unplaceable`).
#[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
#[pyclass(frozen, module = "hydraulis")]
#[derive(Debug)]
pub(crate) struct Planner {
    core: search::Planner,
    max_strategies: Option<usize>,
}

#[pymethods]
impl Planner {
    #[new]
    #[pyo3(signature = (profile, cluster, *, strategies=None, max_strategies=None, memory="per_micro_batch", link=None, budget=None, prove=false))]
    #[expect(clippy::too_many_arguments, reason = "Python gives them by name")]
    fn new(
        py: Python<'_>,
        profile: &CostProfile,
        cluster: &Cluster,
        strategies: Option<&Bound<'_, PyAny>>,
        max_strategies: Option<Integer>,
        memory: &str,
        link: Option<&Link>,
        budget: Option<&SearchBudget>,
        prove: bool,
    ) -> PyResult<Planner> {
        // Importing NumPy takes a tenth of a second; done here, it does not delay the first plan.
        py.import("numpy")?;
        let budget = match (budget, prove) {
            (Some(_), true) => {
                let message =
                    "budget and prove=True are both given, and prove=True means SearchBudget.PROOF: give one of them";
                return Err(invalid(py, message, &codes::ARGUMENT_INVALID));
            }
            (Some(budget), false) => budget.0,
            (None, true) => spec::SearchBudget::PROOF,
            (None, false) => spec::SearchBudget::ONLINE,
        };
        let max_strategies = max_strategies.map(|most| most.positive(py, "max_strategies")).transpose()?;
        let memory: MemoryRule = memory.parse().map_err(|error| raise(py, &error))?;
        let strategies = strategies.map(|strategies| Strategies::take(strategies)).transpose()?;
        let (profile, cluster) = (profile.0.clone(), cluster.0.clone());
        let link = link.map(Link::core);
        let core = detached(py, move || {
            let core = match strategies {
                None => search::Planner::new(profile, cluster, None),
                Some(Strategies::Search) => search::Planner::search(profile, cluster),
                Some(Strategies::List(given)) => {
                    let list = given.iter().map(GivenStrategy::read).collect::<Result<Vec<Strategy>, _>>()?;
                    search::Planner::new(profile, cluster, Some(list))
                }
            }?;
            let core = core.with_memory(memory).with_budget(budget);
            match link {
                Some(link) => core.with_link(link),
                None => Ok(core),
            }
        })?;
        Ok(Planner { core, max_strategies })
    }

    /// Strategies to choose from; for a search, its fallback strategies.
    #[getter]
    fn strategies(&self) -> Vec<String> {
        self.core.strategies().iter().map(Strategy::to_string).collect()
    }

    /// Most tokens of a sequence that some strategy admits.
    #[getter]
    fn longest_admitted(&self) -> u64 {
        self.core.longest_admitted().0
    }

    /// Memory rule of micro-batches.
    #[getter]
    fn memory(&self) -> &'static str {
        self.core.cost().memory().name()
    }

    /// Most distinct strategies of one run; None if there is no limit.
    #[getter]
    fn max_strategies(&self) -> Option<usize> {
        self.max_strategies
    }

    /// Plans sequences of these lengths: the shortest iteration found, or with a link the shortest step; with
    /// `max_strategies`, for a run that used the strategies `used` so far. Ctrl-C ends the planning.
    ///
    /// Args:
    ///     lengths: Tokens of each sequence, any one-dimensional integer array or list; a sequence's id is its index.
    ///     targets: Target tokens of each sequence; default all its tokens.
    ///     used: Strategies that the run used so far, as text or `Strategy`; required with `max_strategies`, refused
    ///         without.
    ///
    /// Raises:
    ///     InvalidInputError: An argument is out of range: `batch_empty`, `lengths_invalid`, `strategy_invalid` or
    ///         `argument_invalid`.
    ///     InfeasibleError: No strategy admits a sequence (`sequence_too_long`).
    #[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
    #[pyo3(signature = (lengths, targets=None, *, used=None))]
    fn plan(
        &self,
        py: Python<'_>,
        lengths: &Bound<'_, PyAny>,
        targets: Option<&Bound<'_, PyAny>>,
        used: Option<Vec<GivenStrategy>>,
    ) -> PyResult<Plan> {
        let (lengths, targets) = take(lengths, targets)?;
        let limit = self.limit(py, used)?;
        let plan = interruptible(py, |cancellation| {
            let batch = Batch::new(&lengths, targets.as_deref())?;
            let Some((most, used)) = limit else { return self.core.plan_cancellable(&batch, cancellation) };
            let mut strategies = used.iter().map(GivenStrategy::read).collect::<Result<Vec<Strategy>, _>>()?;
            strategies.sort();
            strategies.dedup();
            self.core.plan_limited_cancellable(&batch, RunLimit { most, used: &strategies }, cancellation)
        })?;
        Ok(Plan::new(py, plan))
    }

    /// Plans several batches together and minimises the sum of iterations, strategy changes and, with a link,
    /// transfers.
    ///
    /// By default no sequence moves, and only iterations count. With `max_delay` a sequence may be trained up to that
    /// many batches earlier or later than its own, within these batches; long sequences are then gathered in few
    /// batches. Each batch keeps its number of tokens to within 1 %; lengths are no longer independent of iterations,
    /// because long sequences come together. Only moves that shorten the total are made. For a single batch without
    /// costs the result is that of `plan`.
    ///
    /// Args:
    ///     batches: Lengths of each batch, in the order of their iterations.
    ///     targets: Target tokens of each batch's sequences; default all tokens.
    ///     max_delay: Most batches by which a sequence may be trained earlier or later.
    ///     switch_ms: Time that a change of strategy adds to an iteration, in ms.
    ///     previous: Strategy of the preceding iteration, as text or `Strategy`, so that the first iteration may be a change
    ///         too.
    ///     progress: Callback that receives a step ("plan" or "exchange"), the completed amount and the most possible; an
    ///         exception that it raises ends the planning.
    ///
    /// Raises:
    ///     InvalidInputError: An argument is out of range: the codes of `Planner.plan`, and `argument_invalid` for a
    ///         planner with a limit of strategies.
    ///     InfeasibleError: No strategy admits a sequence (`sequence_too_long`).
    #[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
    #[expect(clippy::too_many_arguments, reason = "Python gives them by name")]
    #[pyo3(
        signature = (batches, targets=None, *, max_delay=Integer::Whole(0), switch_ms=0.0, previous=None, progress=None),
        text_signature = "($self, batches, targets=None, *, max_delay=0, switch_ms=0.0, previous=None, progress=None)"
    )]
    fn plan_lookahead(
        &self,
        py: Python<'_>,
        batches: &Bound<'_, PyAny>,
        targets: Option<&Bound<'_, PyAny>>,
        max_delay: Integer,
        switch_ms: f64,
        previous: Option<GivenStrategy>,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<LookaheadPlan> {
        if self.max_strategies.is_some() {
            let message = "the planner has a limit of strategies, which a lookahead does not keep: leave max_strategies \
                           out, or give the planner a list of so many strategies";
            return Err(invalid(py, message, &codes::ARGUMENT_INVALID));
        }
        let request = Request::take(batches, targets, max_delay, (switch_ms, previous))?;
        request.plan(py, &self.core, progress)
    }

    /// Lists every promise that a lookahead plan violates, as `code: detail`.
    ///
    /// Args:
    ///     plan: Plan to check.
    ///     batches, targets, max_delay, switch_ms, previous: Arguments of the `plan_lookahead` call.
    #[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
    #[expect(clippy::too_many_arguments, reason = "Python gives them by name")]
    #[pyo3(
        signature = (plan, batches, targets=None, *, max_delay=Integer::Whole(0), switch_ms=0.0, previous=None),
        text_signature = "($self, plan, batches, targets=None, *, max_delay=0, switch_ms=0.0, previous=None)"
    )]
    fn check_lookahead(
        &self,
        py: Python<'_>,
        plan: &LookaheadPlan,
        batches: &Bound<'_, PyAny>,
        targets: Option<&Bound<'_, PyAny>>,
        max_delay: Integer,
        switch_ms: f64,
        previous: Option<GivenStrategy>,
    ) -> PyResult<Vec<String>> {
        let request = Request::take(batches, targets, max_delay, (switch_ms, previous))?;
        request.check(py, &self.core, plan)
    }

    /// Lists every promise that a plan violates for these lengths, as `code: detail`.
    ///
    /// Args:
    ///     plan: Plan for the cluster of this planner.
    ///     lengths: Tokens of each sequence of the batch.
    ///     targets: Target tokens of each sequence; default all its tokens.
    #[pyo3(signature = (plan, lengths, targets=None))]
    fn check(
        &self,
        py: Python<'_>,
        plan: &Plan,
        lengths: &Bound<'_, PyAny>,
        targets: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<String>> {
        let (lengths, targets) = take(lengths, targets)?;
        let plan = plan.inner();
        let broken = detached(py, || Ok(self.core.check(plan, &Batch::new(&lengths, targets.as_deref())?)))?;
        Ok(broken.iter().map(ToString::to_string).collect())
    }

    /// Predicted timeline of each of the plan's replicas.
    fn timeline(&self, py: Python<'_>, plan: &Plan) -> PyResult<Vec<Vec<Span>>> {
        let plan = plan.inner();
        let timelines = detached(py, || plan::predicted_timeline(plan, self.core.cost()))?;
        Ok(timelines.iter().map(spans).collect())
    }

    /// Returns the account of `Plan.explain`, with the memory of the ranks by use, and the memory that they would take
    /// without recomputation, copies in host memory and sharding.
    fn explain(&self, py: Python<'_>, plan: &Plan) -> PyResult<String> {
        let plan = plan.inner();
        detached(py, || explain_with_memory(plan, self.core.cost()))
    }

    /// Peak memory of each rank by category, from the profile's numbers for its stage, or for the fullest stage of its
    /// replica's scheme if it has no others; None for ranks without work.
    fn rank_memory(&self, py: Python<'_>, plan: &Plan) -> PyResult<Vec<Option<RankMemory>>> {
        let plan = plan.inner();
        let by_rank = detached(py, || simulate::rank_memory(plan, self.core.cost()))?;
        Ok(by_rank.into_iter().map(|memory| memory.map(RankMemory::from)).collect())
    }

    /// Simulates the plan's iteration with slow ranks and slow links, and reports the use of the time.
    ///
    /// Without slowdowns, network and link the result equals the plan's prediction, step included. The optimizer is
    /// excluded.
    ///
    /// Args:
    ///     plan: Plan for the cluster of this planner.
    ///     slowdowns: Time factor of each slow rank; a stage takes as long as its slowest rank.
    ///     network: Network that carries activations between stages; without it, they arrive at once.
    ///     link: Link that carries parameters and gradients; default the planner's link, if any.
    ///
    /// Raises:
    ///     InvalidInputError: A rank or factor is out of range (code `argument_invalid`), or the link's model has fewer layers than
    ///         a scheme has stages (`scheme_model_mismatch`).
    #[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
    #[pyo3(signature = (plan, *, slowdowns=None, network=None, link=None))]
    fn simulate(
        &self,
        py: Python<'_>,
        plan: &Plan,
        slowdowns: Option<&Bound<'_, PyDict>>,
        network: Option<&Network>,
        link: Option<&Link>,
    ) -> PyResult<Simulation> {
        let slowdown = |(rank, factor): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
            Ok((rank.extract::<Integer>()?.count(py, "a rank of slowdowns")?, factor.extract()?))
        };
        let slowdowns: Vec<(u32, f64)> = slowdowns.into_iter().flatten().map(slowdown).collect::<PyResult<_>>()?;
        let plan = plan.inner();
        let link = link.map(Link::core).or_else(|| self.core.link().cloned());
        let iteration = detached(py, || simulate(plan, self.core.cost(), &slowdowns, network, link))?;
        Simulation::new(py, &iteration)
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<((CostProfile, Cluster), Bound<'py, PyDict>)> {
        let cost = self.core.cost();
        let named = PyDict::new(py);
        if self.core.is_search() {
            named.set_item("strategies", "search")?;
        } else {
            named.set_item("strategies", self.strategies())?;
        }
        named.set_item("max_strategies", self.max_strategies)?;
        named.set_item("memory", self.memory())?;
        named.set_item("link", self.core.link().cloned().map(Link::from))?;
        named.set_item("budget", SearchBudget(self.core.budget()))?;
        Ok(((CostProfile(cost.profile().clone()), Cluster(cost.cluster().clone())), named))
    }

    fn __repr__(&self) -> String {
        let cluster = self.core.cost().cluster();
        format!(
            "Planner('{}', {} GPUs, {} strategies)",
            self.core.cost().profile().name,
            cluster.gpus(),
            self.strategies().len()
        )
    }
}

impl Planner {
    /// The limit and the strategies used so far: both or neither are given.
    fn limit(&self, py: Python<'_>, used: Option<Vec<GivenStrategy>>) -> PyResult<Option<(usize, Vec<GivenStrategy>)>> {
        match (self.max_strategies, used) {
            (None, None) => Ok(None),
            (Some(most), Some(used)) => Ok(Some((most, used))),
            (limit, _) => {
                let given =
                    if limit.is_some() { "has a limit, and used is left out" } else { "has none, and used is given" };
                let message = format!(
                    "the planner {given}: with max_strategies each plan needs the strategies that the run used so far, \
                     an empty list at first; without, none"
                );
                Err(invalid(py, &message, &codes::ARGUMENT_INVALID))
            }
        }
    }
}

/// The values of the `strategies` argument.
enum Strategies {
    List(Vec<GivenStrategy>),
    Search,
}

impl Strategies {
    fn take(strategies: &Bound<'_, PyAny>) -> PyResult<Strategies> {
        if strategies.extract::<String>().is_ok_and(|text| text == "search") {
            return Ok(Strategies::Search);
        }
        strategies.extract().map(Strategies::List).map_err(|_| {
            let message = format!("strategies is {strategies:?}: give 'search', or a list such as ['1x<tp2>+2x<1>']");
            invalid(strategies.py(), &message, &codes::STRATEGY_INVALID)
        })
    }
}

fn take(lengths: &Bound<'_, PyAny>, targets: Option<&Bound<'_, PyAny>>) -> PyResult<(Vec<i64>, Option<Vec<i64>>)> {
    let targets = targets.map(|targets| integers("targets", Whole::Targets, targets)).transpose()?;
    Ok((integers("lengths", Whole::Lengths, lengths)?, targets))
}
