//! `BalanceOptions`.

use hydraulis_core::batching::balance as balancing;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::convert::arrays::floats;
use crate::convert::integers::Integer;

/// The demands of a training loop on `balance`, beyond replicas, cap and barrier.
///
/// A value out of range is refused by `balance`, which knows the number of replicas.
///
/// Args:
///     micro_batches: Exact number of micro-batches of every replica; None for as few as are found.
///     least_micro_batches: Least number of micro-batches of a replica.
///     multiple_of: Divisor of every replica's number of micro-batches.
///     equal_sequences: Whether the replicas' numbers of sequences differ by at most one, or by one group.
///     fixed_ms: Time that each micro-batch takes in addition to its sequences, an empty one too, in ms.
///     speeds: Speed of each replica, in proportion to the others; None for equal speeds. A replica of speed 0.5 takes
///         twice as long.
///     cap_extra_tokens: Cap of a micro-batch on the `extra_tokens` of its sequences.
///     allow_empty: Whether a micro-batch may have no sequence, and with one barrier per step a replica no micro-batch.
///
/// Raises:
///     InvalidInputError: A number of micro-batches or a cap is no whole number (code `argument_invalid`).
#[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
#[pyclass(frozen, eq, module = "hydraulis")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BalanceOptions(pub(crate) balancing::BalanceOptions);

#[pymethods]
impl BalanceOptions {
    #[new]
    #[pyo3(
        signature = (
            *, micro_batches=None, least_micro_batches=Integer::Whole(0), multiple_of=Integer::Whole(1),
            equal_sequences=false, fixed_ms=0.0, speeds=None, cap_extra_tokens=None, allow_empty=false
        ),
        text_signature = "(*, micro_batches=None, least_micro_batches=0, multiple_of=1, equal_sequences=False, \
                          fixed_ms=0.0, speeds=None, cap_extra_tokens=None, allow_empty=False)"
    )]
    #[expect(clippy::too_many_arguments, reason = "Python gives them by name")]
    fn new(
        py: Python<'_>,
        micro_batches: Option<Integer>,
        least_micro_batches: Integer,
        multiple_of: Integer,
        equal_sequences: bool,
        fixed_ms: f64,
        speeds: Option<&Bound<'_, PyAny>>,
        cap_extra_tokens: Option<Integer>,
        allow_empty: bool,
    ) -> PyResult<BalanceOptions> {
        let read = |name, number: Option<Integer>| number.map(|number| number.read(py, name)).transpose();
        Ok(BalanceOptions(balancing::BalanceOptions {
            micro_batches: read("micro_batches", micro_batches)?,
            least_micro_batches: least_micro_batches.read(py, "least_micro_batches")?,
            multiple_of: multiple_of.read(py, "multiple_of")?,
            equal_sequences,
            fixed_ms,
            speeds: speeds.map(|speeds| floats("speeds", speeds)).transpose()?,
            cap_extra_tokens: read("cap_extra_tokens", cap_extra_tokens)?,
            allow_empty,
        }))
    }

    /// Exact number of micro-batches of every replica.
    #[getter]
    fn micro_batches(&self) -> Option<i64> {
        self.0.micro_batches
    }

    /// Least number of micro-batches of a replica.
    #[getter]
    fn least_micro_batches(&self) -> i64 {
        self.0.least_micro_batches
    }

    /// Divisor of every replica's number of micro-batches.
    #[getter]
    fn multiple_of(&self) -> i64 {
        self.0.multiple_of
    }

    /// Whether the replicas' numbers of sequences differ by at most one, or by one group.
    #[getter]
    fn equal_sequences(&self) -> bool {
        self.0.equal_sequences
    }

    /// Time that each micro-batch takes in addition to its sequences, in ms.
    #[getter]
    fn fixed_ms(&self) -> f64 {
        self.0.fixed_ms
    }

    /// Speed of each replica.
    #[getter]
    fn speeds(&self) -> Option<Vec<f64>> {
        self.0.speeds.clone()
    }

    /// Cap of a micro-batch on extra tokens.
    #[getter]
    fn cap_extra_tokens(&self) -> Option<i64> {
        self.0.cap_extra_tokens
    }

    /// Whether a micro-batch may have no sequence.
    #[getter]
    fn allow_empty(&self) -> bool {
        self.0.allow_empty
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<((), Bound<'py, PyDict>)> {
        let named = PyDict::new(py);
        named.set_item("micro_batches", self.micro_batches())?;
        named.set_item("least_micro_batches", self.least_micro_batches())?;
        named.set_item("multiple_of", self.multiple_of())?;
        named.set_item("equal_sequences", self.equal_sequences())?;
        named.set_item("fixed_ms", self.fixed_ms())?;
        named.set_item("speeds", self.speeds())?;
        named.set_item("cap_extra_tokens", self.cap_extra_tokens())?;
        named.set_item("allow_empty", self.allow_empty())?;
        Ok(((), named))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let ((), named) = self.__getnewargs_ex__(py)?;
        let given = named.iter().map(|(name, value)| Ok(format!("{name}={}", value.repr()?)));
        Ok(format!("BalanceOptions({})", given.collect::<PyResult<Vec<String>>>()?.join(", ")))
    }
}
