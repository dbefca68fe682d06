//! `Link` and `LinkRates`.

use std::sync::Arc;

use hydraulis_core::timing::Traffic;
use hydraulis_core::{spec, timing};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};

use crate::convert::errors::raise;
use crate::convert::gil::detached;
use crate::convert::integers::Integer;
use crate::convert::text::Text;
use crate::cost::profile::CostProfile;
use crate::layout::table::ParameterTable;
use crate::spec::Cluster;

/// Bandwidths and message time of a cluster's links, each way.
///
/// Args:
///     gigabytes_per_s: Bandwidth between one node and all others, in 1e9 bytes a second.
///     gpu_gigabytes_per_s: Bandwidth of one GPU inside its node, in 1e9 bytes a second.
///     message_us: Time of a message in addition to its bytes, in microseconds.
///
/// Raises:
///     InvalidInputError: A number is out of range (code `argument_invalid`).
#[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
#[pyclass(frozen, eq, get_all, from_py_object, module = "hydraulis")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LinkRates {
    /// Bandwidth between one node and all others, in 1e9 bytes a second.
    gigabytes_per_s: f64,
    /// Bandwidth of one GPU inside its node, in 1e9 bytes a second.
    gpu_gigabytes_per_s: f64,
    /// Time of a message in addition to its bytes, in microseconds.
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
    // Without this text, Python's signature would not show the defaults.
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

    /// Reads `NODE[,GPU[,MESSAGE]]` in GB/s, GB/s and microseconds; omitted parts take their defaults.
    ///
    /// Raises:
    ///     InvalidInputError: The text is malformed, or a number is out of range (code `argument_invalid`).
    #[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
    #[staticmethod]
    fn parse(py: Python<'_>, text: Text<'_>) -> PyResult<LinkRates> {
        text.parse().map(|rates: spec::LinkRates| rates.into()).map_err(|error| raise(py, &error))
    }

    /// Rates of a cluster's links from a profile's measured all-to-all exchanges, the collective of transfers.
    ///
    /// Args:
    ///     profile: Cost profile with measured links, in the nodes that it states.
    ///     cluster: Cluster of the plans.
    ///
    /// Returns:
    ///     The rates; None if the profile has none, or none between nodes and the cluster has several nodes.
    ///
    /// Raises:
    ///     InvalidInputError: A measured rate is out of range (code `argument_invalid`).
    #[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
    #[staticmethod]
    fn measured(py: Python<'_>, profile: &CostProfile, cluster: &Cluster) -> PyResult<Option<LinkRates>> {
        let rates = profile.0.exchange_rates(&cluster.0).map_err(|error| raise(py, &error))?;
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

/// The links of a cluster and their traffic; a planner with a link counts transfers.
///
/// Parameters travel from their owners layer group by layer group and gradients travel back, overlapped with
/// computation. `docs/plan-bench.md` describes the model in full.
///
/// Args:
///     table: Table of the model's parameters; frozen ones travel only where parameters are sharded.
///     gigabytes_per_s: Bandwidth at which each node sends, and at the same time receives, in 1e9 bytes a second.
///     gpu_gigabytes_per_s: Bandwidth of each GPU inside its node, in 1e9 bytes a second.
///     message_us: Time of a message in addition to its bytes, in microseconds.
///     parameter_bytes: Bytes of one parameter in transfer.
///     gradient_bytes: Bytes of one gradient in transfer.
///     node_slowdowns: Time of each node's transfers to other nodes, relative to `gigabytes_per_s`, from 1; empty for
///         nodes of equal links.
///
/// Raises:
///     InvalidInputError: A number is out of range (code `argument_invalid`).
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
            message_us=spec::LinkRates::USUAL_MESSAGE_US, parameter_bytes=Integer::of(Traffic::USUAL_PARAMETER_BYTES),
            gradient_bytes=Integer::of(Traffic::USUAL_GRADIENT_BYTES), node_slowdowns=Vec::new()
        ),
        text_signature = "(table, *, gigabytes_per_s, gpu_gigabytes_per_s=200.0, message_us=10.0, parameter_bytes=2, gradient_bytes=4, node_slowdowns=())"
    )]
    #[expect(clippy::too_many_arguments, reason = "each is a keyword argument of the Python class")]
    fn new(
        py: Python<'_>,
        table: &ParameterTable,
        gigabytes_per_s: f64,
        gpu_gigabytes_per_s: f64,
        message_us: f64,
        parameter_bytes: Integer,
        gradient_bytes: Integer,
        node_slowdowns: Vec<f64>,
    ) -> PyResult<Link> {
        let parameter_bytes = parameter_bytes.count(py, "parameter_bytes")?;
        let gradient_bytes = gradient_bytes.count(py, "gradient_bytes")?;
        let rates = spec::LinkRates { gigabytes_per_s, gpu_gigabytes_per_s, message_us };
        let traffic = Traffic { rates, parameter_bytes, gradient_bytes };
        detached(py, || timing::Link::new((*table.0).clone(), traffic)?.with_node_slowdowns(node_slowdowns)).map(Link)
    }

    /// The same links, with these factors of the times of each node's transfers to other nodes.
    ///
    /// Args:
    ///     node_slowdowns: Factor of each node, from 1; empty for nodes of equal links.
    ///
    /// Raises:
    ///     InvalidInputError: A factor is out of range (code `argument_invalid`).
    #[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
    fn with_node_slowdowns(&self, py: Python<'_>, node_slowdowns: Vec<f64>) -> PyResult<Link> {
        self.core().with_node_slowdowns(node_slowdowns).map(Link).map_err(|error| raise(py, &error))
    }

    /// Creates the links at these rates for the profile's model, with the data types that training transfers.
    ///
    /// Args:
    ///     profile: Cost profile that states its model.
    ///     rates: Rates of the links.
    ///
    /// Raises:
    ///     InvalidInputError: The profile does not state its model (code `profile_invalid`).
    #[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
    #[staticmethod]
    fn of_profile(py: Python<'_>, profile: &CostProfile, rates: LinkRates) -> PyResult<Link> {
        detached(py, || timing::Link::of_profile(&profile.0, rates.into())).map(Link)
    }

    /// The rates of the links.
    #[getter]
    fn rates(&self) -> LinkRates {
        self.0.traffic().rates.into()
    }

    /// Factor of the time of each node's transfers to other nodes; empty for equal links.
    #[getter]
    fn node_slowdowns(&self) -> Vec<f64> {
        self.0.node_slowdowns().to_vec()
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<((ParameterTable,), Bound<'py, PyDict>)> {
        let Traffic { rates, parameter_bytes, gradient_bytes } = self.0.traffic();
        let named = named(py, rates)?;
        named.set_item("parameter_bytes", parameter_bytes)?;
        named.set_item("gradient_bytes", gradient_bytes)?;
        named.set_item("node_slowdowns", self.0.node_slowdowns().to_vec())?;
        Ok(((ParameterTable(Arc::new(self.0.table().clone())),), named))
    }

    fn __repr__(&self) -> String {
        let spec::LinkRates { gigabytes_per_s, gpu_gigabytes_per_s, message_us } = self.0.traffic().rates;
        let slowest = self.0.node_slowdowns().iter().copied().fold(1.0, f64::max);
        let slow = if slowest > 1.0 { format!(", nodes up to {slowest} times slower") } else { String::new() };
        format!(
            "Link({gigabytes_per_s} GB/s a node, {gpu_gigabytes_per_s} GB/s a GPU, {message_us} us a message{slow})"
        )
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
