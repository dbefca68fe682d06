//! `Planner`.

use hydraulis_core::lengths::Batch;
use hydraulis_core::plan;
use hydraulis_core::spec::Strategy;
use pyo3::prelude::*;

use crate::arrays::integers;
use crate::cost::CostProfile;
use crate::errors::invalid;
use crate::gil::detached;
use crate::plan::Plan;
use crate::schedule::{Span, spans};
use crate::spec::Cluster;

/// Plans batches for one model on one cluster: over the profile's list of strategies, over another list, or with
/// `strategies="search"` over any set of replicas of the profile's schemes.
#[pyclass(frozen, module = "hydraulis")]
#[derive(Debug)]
pub(crate) struct Planner(plan::Planner);

#[pymethods]
impl Planner {
    #[new]
    #[pyo3(signature = (profile, cluster, *, strategies=None))]
    fn new(
        py: Python<'_>,
        profile: &CostProfile,
        cluster: &Cluster,
        strategies: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Planner> {
        let strategies = strategies.map(|strategies| Strategies::take(strategies)).transpose()?;
        let (profile, cluster) = (profile.0.clone(), cluster.0);
        let planner = detached(py, move || match strategies {
            None => plan::Planner::new(profile, cluster, None),
            Some(Strategies::Search) => plan::Planner::search(profile, cluster),
            Some(Strategies::List(texts)) => {
                let list = texts.iter().map(|text| text.parse()).collect::<Result<Vec<Strategy>, _>>()?;
                plan::Planner::new(profile, cluster, Some(list))
            }
        })?;
        Ok(Planner(planner))
    }

    /// The strategies chosen from; those that a search begins with.
    #[getter]
    fn strategies(&self) -> Vec<String> {
        self.0.strategies().iter().map(Strategy::to_string).collect()
    }

    /// The longest sequence that some strategy admits, in tokens.
    #[getter]
    fn longest_admitted(&self) -> u64 {
        self.0.longest_admitted().0
    }

    /// The plan of least iteration time found for sequences of these lengths.
    #[pyo3(signature = (lengths, targets=None))]
    fn plan(&self, py: Python<'_>, lengths: &Bound<'_, PyAny>, targets: Option<&Bound<'_, PyAny>>) -> PyResult<Plan> {
        let (lengths, targets) = take(lengths, targets)?;
        let plan = detached(py, || self.0.plan(&Batch::new(&lengths, targets.as_deref())?))?;
        Ok(Plan::new(py, plan))
    }

    /// Every promise that a plan breaks for these lengths, as `code: detail`.
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
        let broken = detached(py, || Ok(self.0.check(plan, &Batch::new(&lengths, targets.as_deref())?)))?;
        Ok(broken.iter().map(ToString::to_string).collect())
    }

    /// The predicted timeline of each of the plan's replicas.
    fn timeline(&self, py: Python<'_>, plan: &Plan) -> PyResult<Vec<Vec<Span>>> {
        let plan = plan.inner();
        let timelines = detached(py, || plan::predicted_timeline(plan, self.0.cost()))?;
        Ok(timelines.iter().map(spans).collect())
    }

    fn __repr__(&self) -> String {
        let cluster = self.0.cost().cluster();
        format!(
            "Planner('{}', {} GPUs, {} strategies)",
            self.0.cost().profile().name,
            cluster.gpus(),
            self.strategies().len()
        )
    }
}

/// What `strategies` may be.
enum Strategies {
    List(Vec<String>),
    Search,
}

impl Strategies {
    fn take(strategies: &Bound<'_, PyAny>) -> PyResult<Strategies> {
        if strategies.extract::<String>().is_ok_and(|text| text == "search") {
            return Ok(Strategies::Search);
        }
        strategies.extract().map(Strategies::List).map_err(|_| {
            let message = format!("strategies is {strategies:?}: give 'search', or a list such as ['1x<tp2>+2x<1>']");
            invalid(strategies.py(), &message, "strategy_syntax")
        })
    }
}

fn take(lengths: &Bound<'_, PyAny>, targets: Option<&Bound<'_, PyAny>>) -> PyResult<(Vec<i64>, Option<Vec<i64>>)> {
    let targets = targets.map(|targets| integers("targets", targets)).transpose()?;
    Ok((integers("lengths", lengths)?, targets))
}
