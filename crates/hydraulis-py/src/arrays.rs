//! NumPy in and out.

use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1, PyUntypedArrayMethods};
use pyo3::prelude::*;

use crate::errors::invalid;

/// A read-only array, made once by moving a vector and given out as often as asked.
#[derive(Debug)]
pub(crate) struct Column(Py<PyArray1<i64>>);

impl Column {
    /// Moves `values` into an array.
    pub(crate) fn new(py: Python<'_>, values: Vec<i64>) -> Column {
        let array = PyArray1::from_vec(py, values);
        Column(array.readwrite().make_nonwriteable().as_unbound().clone_ref(py))
    }

    /// Moves counts or ids into an array.
    pub(crate) fn from_counts<T: TryInto<i64>>(py: Python<'_>, values: impl IntoIterator<Item = T>) -> Column {
        Column::new(py, values.into_iter().map(|value| value.try_into().unwrap_or(i64::MAX)).collect())
    }

    /// The array itself, not a copy.
    pub(crate) fn get(&self, py: Python<'_>) -> Py<PyArray1<i64>> {
        self.0.clone_ref(py)
    }
}

/// The values of anything that `numpy.asarray` makes a one-dimensional integer array of.
pub(crate) fn integers(name: &str, values: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    let py = values.py();
    let array = py.import("numpy")?.call_method1("asarray", (values,))?;
    let shape: Vec<usize> = array.getattr("shape")?.extract()?;
    if shape.len() != 1 {
        let message =
            format!("{name} has {} dimensions: the limit is 1; give one number for each sequence", shape.len());
        return Err(invalid(py, &message, "length_not_integer"));
    }
    let kind: String = array.getattr("dtype")?.getattr("kind")?.extract()?;
    if kind != "i" && kind != "u" && shape[0] > 0 {
        return Err(not_integer(name, &array)?);
    }
    let array = py.import("numpy")?.call_method1("minimum", (array, i64::MAX))?;
    let array: PyReadonlyArray1<'_, i64> = array.call_method1("astype", ("int64",))?.extract()?;
    Ok(array.as_array().iter().copied().take(array.len()).collect())
}

/// Names the first value that is not a whole number, or else the type of all.
fn not_integer(name: &str, array: &Bound<'_, PyAny>) -> PyResult<PyErr> {
    let py = array.py();
    let dtype = array.getattr("dtype")?;
    for (sequence, value) in array.try_iter()?.enumerate() {
        let value = value?;
        let whole = value.call_method0("is_integer").and_then(|whole| whole.extract()).unwrap_or(false);
        if !whole {
            let message =
                format!("{name}: sequence {sequence} is {value}, which is no whole number: give token counts");
            return Ok(invalid(py, &message, "length_not_integer"));
        }
    }
    let message = format!(
        "{name} has dtype {dtype}: only integer arrays are taken, so that nothing is rounded; convert it first"
    );
    Ok(invalid(py, &message, "length_not_integer"))
}
