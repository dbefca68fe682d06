//! Whole numbers as arguments: any other value is refused under the argument's name.

use hydraulis_core::codes;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyString};

use crate::convert::errors::invalid;

/// The most characters of a refused value in a message.
const SHOWN: usize = 40;

/// An argument for a whole number. The conversion accepts every value, because only the reading knows its name.
#[derive(Clone, Debug)]
pub(crate) enum Integer {
    /// A value with `__index__` that fits 128 bits.
    Whole(i128),
    /// The text of any other value, and the cause of its refusal.
    Refused(String, &'static str),
}

impl FromPyObject<'_, '_> for Integer {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, '_, PyAny>) -> PyResult<Integer> {
        let is_bool = value.is_instance_of::<PyBool>();
        let index = value.call_method0("__index__").ok().filter(|_| !is_bool);
        let whole = index.as_ref().and_then(|index| index.extract().ok()).map(Integer::Whole);
        Ok(whole.unwrap_or_else(|| {
            let shown = if value.is_instance_of::<PyString>() { format!("'{}'", *value) } else { value.to_string() };
            let text: String = shown.chars().take(SHOWN).collect();
            let why = if index.is_some() { "a whole number within 64 bits" } else { "a whole number (an int)" };
            Integer::Refused(text, why)
        }))
    }
}

/// A type of whole numbers in the core.
pub(crate) trait Count: TryFrom<i128> {
    /// Its greatest value.
    const MOST: u64;
}

macro_rules! counts {
    ($($type:ty),*) => {$(
        impl Count for $type {
            const MOST: u64 = <$type>::MAX as u64;
        }
    )*};
}

counts!(u16, u32, u64, usize);

impl Integer {
    /// A default of the core.
    pub(crate) fn of(value: u32) -> Integer {
        Integer::Whole(value.into())
    }

    /// The number, of any sign.
    pub(crate) fn read(self, py: Python<'_>, name: &str) -> PyResult<i64> {
        match self {
            Integer::Whole(value) => {
                i64::try_from(value).map_err(|_| refuse(py, name, value, "a whole number within 64 bits"))
            }
            Integer::Refused(text, why) => Err(refuse(py, name, text, why)),
        }
    }

    /// The number as a count from 0 on.
    pub(crate) fn count<T: Count>(self, py: Python<'_>, name: &str) -> PyResult<T> {
        self.at_least(py, name, 0)
    }

    /// The number as a count from 1 on.
    pub(crate) fn positive<T: Count>(self, py: Python<'_>, name: &str) -> PyResult<T> {
        self.at_least(py, name, 1)
    }

    fn at_least<T: Count>(self, py: Python<'_>, name: &str, least: i128) -> PyResult<T> {
        let value = match self {
            Integer::Whole(value) => value,
            Integer::Refused(text, why) => return Err(refuse(py, name, text, why)),
        };
        let taken = T::try_from(value).ok().filter(|_| value >= least);
        taken.ok_or_else(|| {
            let limit = if value < least { format!("of at least {least}") } else { format!("up to {}", T::MOST) };
            refuse(py, name, value, &format!("a whole number {limit}"))
        })
    }
}

/// Each number of a list.
pub(crate) fn counts_of<T: Count>(py: Python<'_>, name: &str, list: Vec<Integer>) -> PyResult<Vec<T>> {
    list.into_iter().map(|number| number.count(py, name)).collect()
}

fn refuse(py: Python<'_>, name: &str, value: impl std::fmt::Display, wanted: &str) -> PyErr {
    invalid(py, &format!("{name} is {value}: it must be {wanted}; correct it"), &codes::ARGUMENT_INVALID)
}
