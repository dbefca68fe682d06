//! Conversions to and from NumPy arrays.

use hydraulis_core::codes;
use numpy::{Element, PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::PyBool;

use crate::convert::errors::invalid;

/// A read-only array, created once from a vector without a copy and returned on every request.
#[derive(Debug)]
pub(crate) struct Column<T: Element = i64>(Py<PyArray1<T>>);

impl<T: Element> Column<T> {
    /// Moves `values` into an array.
    pub(crate) fn new(py: Python<'_>, values: Vec<T>) -> Column<T> {
        let array = PyArray1::from_vec(py, values);
        Column(array.readwrite().make_nonwriteable().as_unbound().clone_ref(py))
    }

    /// Returns the array without a copy.
    pub(crate) fn get(&self, py: Python<'_>) -> Py<PyArray1<T>> {
        self.0.clone_ref(py)
    }
}

impl Column {
    /// Moves counts or ids into an array.
    pub(crate) fn from_counts<T: TryInto<i64>>(py: Python<'_>, values: impl IntoIterator<Item = T>) -> Column {
        Column::new(py, values.into_iter().map(|value| value.try_into().unwrap_or(i64::MAX)).collect())
    }
}

/// Pairs of counts or ids as a read-only array of shape (pairs, 2).
pub(crate) fn pairs<T: TryInto<i64>>(
    py: Python<'_>,
    values: impl ExactSizeIterator<Item = [T; 2]>,
) -> PyResult<Py<PyArray2<i64>>> {
    let shape = (values.len(), 2);
    let column = Column::from_counts(py, values.flatten()).get(py);
    Ok(column.bind(py).call_method1("reshape", (shape,))?.cast_into()?.unbind())
}

/// The start of each list when the lists are concatenated, and the end of the last.
pub(crate) fn offsets(lengths: impl Iterator<Item = usize>) -> impl Iterator<Item = usize> {
    std::iter::once(0).chain(lengths.scan(0, |end, length| {
        *end += length;
        Some(*end)
    }))
}

/// The kind of a list of integers, for error messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whole {
    /// The length of each sequence.
    Lengths,
    /// The target tokens of each sequence.
    Targets,
    /// The number of occurrences of each length.
    Counts,
    /// The extra tokens of each sequence.
    ExtraTokens,
    /// The group of each sequence.
    Groups,
}

impl Whole {
    /// The name of the item that one value belongs to.
    fn item(self) -> &'static str {
        match self {
            Whole::Lengths | Whole::Targets | Whole::ExtraTokens | Whole::Groups => "sequence",
            Whole::Counts => "entry",
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            Whole::Lengths => "give a token count for each sequence",
            Whole::Targets => "give a count of target tokens for each sequence",
            Whole::Counts => "give for each length how often it occurs",
            Whole::ExtraTokens => "give a count of extra tokens for each sequence",
            Whole::Groups => "give the number of a group for each sequence",
        }
    }
}

/// Reads the values of any object that `numpy.asarray` converts to a one-dimensional integer array.
///
/// No value is rounded or truncated: any other value is refused, with its sequence.
pub(crate) fn integers(name: &str, whole: Whole, values: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    taken(name, whole, &one_dimensional(name, whole, values)?, 0)
}

/// The one-dimensional array that `numpy.asarray` returns, of any type.
pub(crate) fn one_dimensional<'py>(
    name: &str,
    whole: Whole,
    values: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = values.py();
    let array = py.import("numpy")?.call_method1("asarray", (values,));
    let array =
        array.map_err(|error| refuse(py, name, whole, &format!("no array can be made of it ({})", error.value(py))))?;
    let dimensions: usize = array.getattr("ndim")?.extract()?;
    if dimensions == 0 {
        // NumPy turns an object that it cannot iterate into an array with this one object.
        let given = if values.is_none() { "None".into() } else { format!("of type '{}'", values.get_type().name()?) };
        let why = format!(
            "it is {given}, and a list, or an array of one dimension, is wanted: the place says of which {}",
            whole.item()
        );
        return Err(refuse(py, name, whole, &why));
    }
    if dimensions != 1 {
        return Err(refuse(py, name, whole, &format!("it has {dimensions} dimensions: the limit is 1")));
    }
    Ok(array)
}

/// The values of an array, or of a piece of one that begins with sequence `first`.
pub(crate) fn taken(name: &str, whole: Whole, array: &Bound<'_, PyAny>, first: usize) -> PyResult<Vec<i64>> {
    let dtype = array.getattr("dtype")?;
    let kind: String = dtype.getattr("kind")?.extract()?;
    let bytes: usize = dtype.getattr("itemsize")?.extract()?;
    if kind == "i" || (kind == "u" && bytes < 8) || array.len()? == 0 {
        let array: PyReadonlyArray1<'_, i64> = array.call_method1("astype", ("int64",))?.extract()?;
        return Ok(array.as_array().to_vec());
    }
    let numbered = (first..).zip(array.try_iter()?);
    if kind == "u" || kind == "O" {
        return numbered.map(|(place, value)| integer(name, whole, place, &value?)).collect();
    }
    for (place, value) in numbered {
        let value = value?;
        let is_whole = value.call_method0("is_integer").and_then(|whole| whole.is_truthy()).unwrap_or(false);
        if !is_whole {
            return Err(no_whole_number(name, whole, place, &value));
        }
    }
    let why = format!("it has dtype {dtype}, and only integers are taken, so that nothing is rounded");
    Err(refuse(array.py(), name, whole, &why))
}

/// Reads the integers of each array in a sequence of arrays; see [`integers`].
pub(crate) fn lists(name: &str, of_one: &str, whole: Whole, values: &Bound<'_, PyAny>) -> PyResult<Vec<Vec<i64>>> {
    let each =
        values.try_iter().map_err(|_| refuse(values.py(), name, whole, &format!("it is no sequence of {name}")))?;
    each.enumerate().map(|(place, one)| integers(&format!("{of_one} {place}"), whole, &one?)).collect()
}

/// The lengths of each batch.
pub(crate) fn batches(batches: &Bound<'_, PyAny>) -> PyResult<Vec<Vec<i64>>> {
    lists("batches", "batch", Whole::Lengths, batches)
}

/// Reads the values of any object that `numpy.asarray` converts to a one-dimensional array of floats.
pub(crate) fn floats(name: &str, values: &Bound<'_, PyAny>) -> PyResult<Vec<f64>> {
    let py = values.py();
    let refused = |why: String| {
        let message = format!("{name}: {why}; give a list or an array of one dimension, with a number for each entry");
        invalid(py, &message, &codes::ARGUMENT_INVALID)
    };
    let numpy = py.import("numpy")?;
    let array = numpy.call_method1("asarray", (values,));
    let array =
        array.map_err(|error| refused(format!("no array of numbers can be made of it ({})", error.value(py))))?;
    let dtype = array.getattr("dtype")?;
    let kind: String = dtype.getattr("kind")?.extract()?;
    if !["i", "u", "f"].contains(&kind.as_str()) {
        return Err(refused(format!("it has dtype {dtype}, and only integers and floats are taken")));
    }
    let dimensions: usize = array.getattr("ndim")?.extract()?;
    if dimensions != 1 {
        return Err(refused(format!("it has {dimensions} dimensions: the limit is 1")));
    }
    let array: PyReadonlyArray1<'_, f64> = array.call_method1("astype", ("float64",))?.extract()?;
    Ok(array.as_array().to_vec())
}

/// Reads one value, which may be any object or too large for int64.
fn integer(name: &str, whole: Whole, place: usize, value: &Bound<'_, PyAny>) -> PyResult<i64> {
    let is_bool = value.is_instance_of::<PyBool>();
    let index = value.call_method0("__index__").ok().filter(|_| !is_bool);
    let index = index.ok_or_else(|| no_whole_number(name, whole, place, value))?;
    index.extract().map_err(|_| {
        let (item, limit) = (whole.item(), i64::MAX);
        let out_of_range =
            |field| format!("{name}: {item} {place} has {field} {value}: the limit is {limit}; correct its {field}");
        let message = out_of_range(match whole {
            Whole::Lengths => "length",
            Whole::Groups => "group",
            Whole::Targets | Whole::Counts | Whole::ExtraTokens => "count",
        });
        invalid(value.py(), &message, &codes::LENGTHS_INVALID)
    })
}

fn no_whole_number(name: &str, whole: Whole, place: usize, value: &Bound<'_, PyAny>) -> PyErr {
    refuse(value.py(), name, whole, &format!("{} {place} is {value}, which is no whole number", whole.item()))
}

fn refuse(py: Python<'_>, name: &str, whole: Whole, why: &str) -> PyErr {
    let message = format!("{name}: {why}; {}", whole.remedy());
    invalid(py, &message, &codes::LENGTHS_INVALID)
}
