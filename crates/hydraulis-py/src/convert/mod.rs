//! Conversions of values: arrays, errors, pickles, and the release of the GIL.
//!
//! The core's values never change, so they can be copied and sent to other processes. A class with a constructor
//! pickles its arguments (`__getnewargs__`; a planner too), a class with a JSON form pickles its JSON, and the result
//! of a function pickles its fields for `_of`, a class method for this purpose alone. Values of one rank's buffers are
//! not pickled.

pub(crate) mod arrays;
pub(crate) mod errors;
pub(crate) mod gil;
pub(crate) mod integers;
pub(crate) mod text;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use pyo3::{BoundObject, PyTypeInfo};

/// The result of `__reduce__`: the callable that rebuilds the value, and its arguments.
pub(crate) type Reduced<'py> = (Bound<'py, PyAny>, Bound<'py, PyTuple>);

/// The value that the class method `maker` of `T` returns for the arguments `given`.
pub(crate) fn made_by<'py, T: PyTypeInfo>(
    py: Python<'py>,
    maker: &str,
    given: impl IntoPyObject<'py, Error: Into<PyErr>>,
) -> PyResult<Reduced<'py>> {
    let given = given.into_pyobject(py).map_err(Into::into)?;
    Ok((py.get_type::<T>().getattr(maker)?, PyTuple::new(py, [given.into_bound().into_any()])?))
}
