//! `Network`.

use hydraulis_core::simulate::{self, Wire};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};

use crate::convert::errors::raise;
use crate::cost::profile::CostProfile;
use crate::timing::link::LinkRates;

/// What carries activations and their gradients between the stages of a pipeline.
///
/// Each rank sends its share of a micro-batch's tokens to the rank in its place in the neighbouring stage: inside a node
/// over a wire of its own, from node to node over the node's one wire, of which everything that ever leaves the node in
/// the iteration has an even share. Each wire carries one message after another each way.
///
/// Args:
///     token_bytes: of one token's hidden state: hidden size times bytes of an element.
///     inside_gigabytes_per_s: of each rank's wire inside its node, one way, 1e9 bytes a second.
///     between_gigabytes_per_s: of each node's wire, one way.
///     inside_latency_ms: until the first byte arrives, inside a node.
///     between_latency_ms: between nodes.
///
/// Raises:
///     InvalidInputError: a value is out of range (code `network_value`).
#[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
#[pyclass(frozen, module = "hydraulis")]
#[derive(Debug)]
pub(crate) struct Network(simulate::Network);

#[pymethods]
impl Network {
    #[new]
    // Of a default that is not written out, Python's signature shows nothing.
    #[pyo3(
        signature = (
            *, token_bytes, inside_gigabytes_per_s, between_gigabytes_per_s, inside_latency_ms=Wire::USUAL_LATENCY_MS,
            between_latency_ms=Wire::USUAL_LATENCY_MS
        ),
        text_signature = "(*, token_bytes, inside_gigabytes_per_s, between_gigabytes_per_s, inside_latency_ms=0.0, between_latency_ms=0.0)"
    )]
    fn new(
        py: Python<'_>,
        token_bytes: f64,
        inside_gigabytes_per_s: f64,
        between_gigabytes_per_s: f64,
        inside_latency_ms: f64,
        between_latency_ms: f64,
    ) -> PyResult<Network> {
        let inside = Wire { gigabytes_per_s: inside_gigabytes_per_s, latency_ms: inside_latency_ms };
        let between = Wire { gigabytes_per_s: between_gigabytes_per_s, latency_ms: between_latency_ms };
        simulate::Network::new(token_bytes, inside, between).map(Network).map_err(|error| raise(py, &error))
    }

    /// The wires by which hidden states of the profile's model travel at these rates.
    ///
    /// Args:
    ///     profile: that says of which model it is.
    ///     rates: of the links.
    ///
    /// Raises:
    ///     InvalidInputError: the profile does not say of which model it is (code `link_model`).
    #[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
    #[staticmethod]
    fn of_profile(py: Python<'_>, profile: &CostProfile, rates: LinkRates) -> PyResult<Network> {
        simulate::Network::of_profile(&profile.0, rates.into()).map(Network).map_err(|error| raise(py, &error))
    }

    /// The same as the profile has them measured point to point, inside a node and between nodes, each by these rates where it
    /// has not.
    ///
    /// Args:
    ///     profile: that says of which model it is.
    ///     otherwise: the rates of what it has not measured.
    ///
    /// Raises:
    ///     InvalidInputError: as `of_profile`, or what was measured is no rate or latency (`network_value`).
    #[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
    #[staticmethod]
    fn measured(py: Python<'_>, profile: &CostProfile, otherwise: LinkRates) -> PyResult<Network> {
        simulate::Network::measured(&profile.0, otherwise.into()).map(Network).map_err(|error| raise(py, &error))
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<((), Bound<'py, PyDict>)> {
        let (inside, between) = (self.0.inside(), self.0.between());
        let named = [
            ("token_bytes", self.0.token_bytes()),
            ("inside_gigabytes_per_s", inside.gigabytes_per_s),
            ("between_gigabytes_per_s", between.gigabytes_per_s),
            ("inside_latency_ms", inside.latency_ms),
            ("between_latency_ms", between.latency_ms),
        ];
        Ok(((), named.into_py_dict(py)?))
    }
}

impl Network {
    pub(crate) fn core(&self) -> simulate::Network {
        self.0
    }
}
