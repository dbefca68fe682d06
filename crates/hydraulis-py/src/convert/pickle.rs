//! How values are copied, and pass to other processes: each by what makes it again.
//!
//! A class with a constructor gives its arguments (`__getnewargs__`), one with a JSON form that, and what a function gave
//! its fields, to `_of`: a class method for this alone, which takes them as they are.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use pyo3::{BoundObject, PyTypeInfo};

/// What `__reduce__` gives: who makes the value again, and of what.
pub(crate) type Reduced<'py> = (Bound<'py, PyAny>, Bound<'py, PyTuple>);

/// The value is what the class method `maker` of `T` makes of `given`.
pub(crate) fn made_by<'py, T: PyTypeInfo>(
    py: Python<'py>,
    maker: &str,
    given: impl IntoPyObject<'py, Error: Into<PyErr>>,
) -> PyResult<Reduced<'py>> {
    let given = given.into_pyobject(py).map_err(Into::into)?;
    Ok((py.get_type::<T>().getattr(maker)?, PyTuple::new(py, [given.into_bound().into_any()])?))
}
