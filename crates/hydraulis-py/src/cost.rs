//! `CostProfile` and the fit of its coefficients.

use hydraulis_core::spec::ContextKind;
use hydraulis_core::{Millis, Tokens, cost};
use pyo3::prelude::*;

use crate::errors::raise;
use crate::gil::detached;
use crate::spec::{Cluster, Scheme};

/// Time and memory of one model under each scheme of one kind of cluster, with where the numbers come from.
#[pyclass(frozen, eq, module = "hydraulis")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CostProfile(pub(crate) cost::CostProfile);

#[pymethods]
impl CostProfile {
    /// The shipped profile of that name.
    #[staticmethod]
    fn preset(py: Python<'_>, name: &str) -> PyResult<CostProfile> {
        cost::preset(name).map(CostProfile).map_err(|error| raise(py, &error))
    }

    /// Names of the shipped profiles.
    #[staticmethod]
    fn presets() -> Vec<&'static str> {
        cost::PRESETS.iter().map(|(name, _)| *name).collect()
    }

    /// Reads and checks the JSON form.
    #[staticmethod]
    fn from_json(py: Python<'_>, text: &str) -> PyResult<CostProfile> {
        detached(py, || cost::CostProfile::from_json(text)).map(CostProfile)
    }

    /// The JSON form, indented.
    fn to_json(&self) -> String {
        self.0.to_json()
    }

    /// What the profile is called in messages.
    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    /// Devices of a node of the cluster it was measured on.
    #[getter]
    fn gpus_per_node(&self) -> u32 {
        self.0.hardware.gpus_per_node
    }

    /// Under which activation checkpointing all of it was measured: `none`, `selective` or `full`.
    #[getter]
    fn checkpointing(&self) -> &'static str {
        self.0.checkpointing.name()
    }

    /// The schemes that have coefficients.
    #[getter]
    fn schemes(&self) -> Vec<String> {
        self.0.schemes.iter().map(|entry| entry.scheme.to_string()).collect()
    }

    /// The kind of context parallelism that a scheme was measured with, `ulysses` or `ring`; None where cp is 1.
    fn context(&self, py: Python<'_>, scheme: &Scheme) -> PyResult<Option<&'static str>> {
        let entry = self.0.scheme(scheme.0).map_err(|error| raise(py, &error))?;
        Ok(entry.context.map(ContextKind::name))
    }

    /// Most tokens of one micro-batch under a scheme on a cluster.
    fn cap_tokens(&self, py: Python<'_>, scheme: &Scheme, cluster: &Cluster) -> PyResult<u64> {
        let (profile, scheme, cluster) = (self.0.clone(), scheme.0, cluster.0);
        detached(py, move || Ok(cost::CostModel::new(profile, cluster).scheme(scheme)?.cap().0))
    }

    fn __repr__(&self) -> String {
        format!("CostProfile('{}', {} schemes)", self.0.name, self.0.schemes.len())
    }
}

/// Fitted coefficients, and how well they explain the measurements.
#[pyclass(frozen, get_all, module = "hydraulis._core")]
#[derive(Clone, Debug)]
pub(crate) struct CostFit {
    quadratic_ms_per_token2: f64,
    linear_ms_per_token: f64,
    fixed_ms: f64,
    relative_error: f64,
}

/// The coefficients a, b, c >= 0 of least squared relative error over timed micro-batches.
#[pyfunction]
pub(crate) fn fit_cost(py: Python<'_>, measurements: Vec<(Vec<u64>, f64)>) -> PyResult<CostFit> {
    let point = |(sequences, ms): (Vec<u64>, f64)| cost::Measurement {
        sequences: sequences.into_iter().map(Tokens).collect(),
        ms: Millis(ms),
    };
    let points: Vec<cost::Measurement> = measurements.into_iter().map(point).collect();
    let fit = detached(py, || cost::fit(&points))?;
    Ok(CostFit {
        quadratic_ms_per_token2: fit.quadratic_ms_per_token2,
        linear_ms_per_token: fit.linear_ms_per_token,
        fixed_ms: fit.fixed_ms,
        relative_error: fit.relative_error,
    })
}
