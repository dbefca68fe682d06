//! `Link` and `LinkRates`.

use hydraulis_core::timing::Traffic;
use hydraulis_core::{spec, timing};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};

use crate::convert::errors::raise;
use crate::convert::gil::detached;
use crate::cost::profile::CostProfile;
use crate::layout::table::ParameterTable;
use crate::spec::Cluster;

/// How fast the links of a cluster are, each way.
///
/// Args:
///     gigabytes_per_s: between one node and all others, 1e9 bytes a second.
///     gpu_gigabytes_per_s: of one GPU inside its node.
///     message_us: microseconds that a message takes beside its bytes.
///
/// Raises:
///     InvalidInputError: a number is beyond its limits (code `link_rate`, `message_time`).
#[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
#[pyclass(frozen, eq, get_all, from_py_object, module = "hydraulis")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LinkRates {
    /// Between one node and all others.
    gigabytes_per_s: f64,
    /// Of one GPU inside its node.
    gpu_gigabytes_per_s: f64,
    /// What a message takes beside its bytes.
    message_us: f64,
}

impl From<LinkRates> for spec::LinkRates {
    fn from(rates: LinkRates) -> spec::LinkRates {
        let LinkRates { gigabytes_per_s, gpu_gigabytes_per_s, message_us } = rates;
        spec::LinkRates { gigabytes_per_s, gpu_gigabytes_per_s, message_us }
    }
}

impl From<spec::LinkRates> for LinkRates {
    fn from(rates: spec::LinkRates) -> LinkRates {
        let spec::LinkRates { gigabytes_per_s, gpu_gigabytes_per_s, message_us } = rates;
        LinkRates { gigabytes_per_s, gpu_gigabytes_per_s, message_us }
    }
}

#[pymethods]
impl LinkRates {
    #[new]
    // Of a default that is not written out, Python's signature shows nothing.
    #[pyo3(
        signature = (
            *, gigabytes_per_s, gpu_gigabytes_per_s=spec::LinkRates::USUAL_GPU, message_us=spec::LinkRates::USUAL_MESSAGE_US
        ),
        text_signature = "(*, gigabytes_per_s, gpu_gigabytes_per_s=200.0, message_us=10.0)"
    )]
    fn new(py: Python<'_>, gigabytes_per_s: f64, gpu_gigabytes_per_s: f64, message_us: f64) -> PyResult<LinkRates> {
        let rates = spec::LinkRates { gigabytes_per_s, gpu_gigabytes_per_s, message_us };
        rates.checked().map(LinkRates::from).map_err(|error| raise(py, &error))
    }

    /// Reads `NODE[,GPU[,MESSAGE]]` in GB/s, GB/s and microseconds; what is left out is as usual.
    ///
    /// Raises:
    ///     InvalidInputError: the text is not written so (code `link_syntax`), or a number is beyond its limits (`link_rate`,
    ///         `message_time`).
    #[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
    #[staticmethod]
    fn parse(py: Python<'_>, text: &str) -> PyResult<LinkRates> {
        text.parse().map(|rates: spec::LinkRates| rates.into()).map_err(|error| raise(py, &error))
    }

    /// The rates of a cluster's links by the all-to-all exchanges that a profile has measured: transfers are such.
    ///
    /// Args:
    ///     profile: with the links of the ranks that it was measured on, in nodes as it says.
    ///     cluster: to be planned for.
    ///
    /// Returns:
    ///     The rates; None where the profile has none, or none between nodes and the cluster has several.
    ///
    /// Raises:
    ///     InvalidInputError: what was measured is beyond the limits of rates (code `link_rate`).
    #[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
    #[staticmethod]
    fn measured(py: Python<'_>, profile: &CostProfile, cluster: &Cluster) -> PyResult<Option<LinkRates>> {
        let rates = profile.0.exchange_rates(cluster.0).map_err(|error| raise(py, &error))?;
        Ok(rates.map(LinkRates::from))
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<((), Bound<'py, PyDict>)> {
        Ok(((), named(py, (*self).into())?))
    }

    fn __repr__(&self) -> String {
        let LinkRates { gigabytes_per_s, gpu_gigabytes_per_s, message_us } = self;
        format!("LinkRates({gigabytes_per_s} GB/s a node, {gpu_gigabytes_per_s} GB/s a GPU, {message_us} us a message)")
    }
}

/// The links of a cluster, and what travels over them: by them a planner counts transfers.
///
/// Parameters go out from home block by block and gradients come back, behind what is computed. `docs/plan-bench.md` has the
/// model in full.
///
/// Args:
///     table: the parameters that travel.
///     gigabytes_per_s: what each node sends, and at the same time receives, 1e9 bytes a second.
///     gpu_gigabytes_per_s: what each GPU does inside its node.
///     message_us: microseconds that a message takes beside its bytes.
///     parameter_bytes: of one parameter on its way out.
///     gradient_bytes: of its gradient on the way back.
///
/// Raises:
///     InvalidInputError: a number is beyond its limits (code `link_rate`, `message_time`, `element_bytes`).
#[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
#[pyclass(frozen, module = "hydraulis")]
#[derive(Debug)]
pub(crate) struct Link(timing::Link);

#[pymethods]
impl Link {
    #[new]
    #[pyo3(
        signature = (
            table, *, gigabytes_per_s, gpu_gigabytes_per_s=spec::LinkRates::USUAL_GPU,
            message_us=spec::LinkRates::USUAL_MESSAGE_US, parameter_bytes=Traffic::USUAL_PARAMETER_BYTES,
            gradient_bytes=Traffic::USUAL_GRADIENT_BYTES
        ),
        text_signature = "(table, *, gigabytes_per_s, gpu_gigabytes_per_s=200.0, message_us=10.0, parameter_bytes=2, gradient_bytes=4)"
    )]
    fn new(
        py: Python<'_>,
        table: &ParameterTable,
        gigabytes_per_s: f64,
        gpu_gigabytes_per_s: f64,
        message_us: f64,
        parameter_bytes: u32,
        gradient_bytes: u32,
    ) -> PyResult<Link> {
        let rates = spec::LinkRates { gigabytes_per_s, gpu_gigabytes_per_s, message_us };
        let traffic = Traffic { rates, parameter_bytes, gradient_bytes };
        detached(py, || timing::Link::new(table.0.clone(), traffic)).map(Link)
    }

    /// Links of these rates for the profile's model, in the types in which training moves it.
    ///
    /// Args:
    ///     profile: that says of which model it is.
    ///     rates: of the links.
    ///
    /// Raises:
    ///     InvalidInputError: the profile does not say of which model it is (code `link_model`).
    #[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
    #[staticmethod]
    fn of_profile(py: Python<'_>, profile: &CostProfile, rates: LinkRates) -> PyResult<Link> {
        detached(py, || timing::Link::of_profile(&profile.0, rates.into())).map(Link)
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<((ParameterTable,), Bound<'py, PyDict>)> {
        let Traffic { rates, parameter_bytes, gradient_bytes } = self.0.traffic();
        let named = named(py, rates)?;
        named.set_item("parameter_bytes", parameter_bytes)?;
        named.set_item("gradient_bytes", gradient_bytes)?;
        Ok(((ParameterTable(self.0.table().clone()),), named))
    }

    fn __repr__(&self) -> String {
        let spec::LinkRates { gigabytes_per_s, gpu_gigabytes_per_s, message_us } = self.0.traffic().rates;
        format!("Link({gigabytes_per_s} GB/s a node, {gpu_gigabytes_per_s} GB/s a GPU, {message_us} us a message)")
    }
}

impl From<timing::Link> for Link {
    fn from(core: timing::Link) -> Link {
        Link(core)
    }
}

impl Link {
    pub(crate) fn core(&self) -> timing::Link {
        self.0.clone()
    }
}

/// The rates as keyword arguments.
fn named(py: Python<'_>, rates: spec::LinkRates) -> PyResult<Bound<'_, PyDict>> {
    let spec::LinkRates { gigabytes_per_s, gpu_gigabytes_per_s, message_us } = rates;
    let rates = [
        ("gigabytes_per_s", gigabytes_per_s),
        ("gpu_gigabytes_per_s", gpu_gigabytes_per_s),
        ("message_us", message_us),
    ];
    rates.into_py_dict(py)
}
