//! `Network`.

use hydraulis_core::simulate::{self, Wire};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};

use crate::convert::errors::raise;
use crate::cost::profile::CostProfile;
use crate::timing::link::LinkRates;

/// A network that carries activations and their gradients between pipeline stages.
///
/// Each rank sends its share of a micro-batch's tokens to the rank at the same position in the neighbouring stage:
/// inside a node over its own wire, between nodes over the node's one wire, where it has an even share among all
/// transfers that leave the node in the iteration. Each wire carries one message after another in each direction.
///
/// Args:
///     token_bytes: Bytes of one token's overlapped state: overlapped size times bytes of an element.
///     inside_gigabytes_per_s: Bandwidth of each rank's wire inside its node, one way, in 1e9 bytes a second.
///     between_gigabytes_per_s: Bandwidth of each node's wire, one way, in 1e9 bytes a second.
///     inside_latency_ms: Time until the first byte arrives inside a node, in ms.
///     between_latency_ms: Time until the first byte arrives between nodes, in ms.
///
/// Raises:
///     InvalidInputError: A value is out of range (code `argument_invalid`).
#[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
#[pyclass(frozen, module = "hydraulis")]
#[derive(Debug)]
pub(crate) struct Network(simulate::Network);

#[pymethods]
impl Network {
    #[new]
    // Without this text, Python's signature would not show the defaults.
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

    /// Creates the network for the overlapped states of the profile's model at these rates.
    ///
    /// Args:
    ///     profile: Cost profile that states its model.
    ///     rates: Rates of the links.
    ///
    /// Raises:
    ///     InvalidInputError: The profile does not state its model (code `profile_invalid`).
    #[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
    #[staticmethod]
    fn of_profile(py: Python<'_>, profile: &CostProfile, rates: LinkRates) -> PyResult<Network> {
        simulate::Network::of_profile(&profile.0, rates.into()).map(Network).map_err(|error| raise(py, &error))
    }

    /// Creates the network from the profile's point-to-point measurements inside a node and between nodes, and from
    /// these rates where a measurement is missing.
    ///
    /// Args:
    ///     profile: Cost profile that states its model.
    ///     otherwise: Rates for missing measurements.
    ///
    /// Raises:
    ///     InvalidInputError: The profile does not state its model (`profile_invalid`), or a measurement is no valid rate or
    ///         latency (`argument_invalid`).
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
