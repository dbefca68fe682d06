//! Text as an argument: a Python string may have halves of surrogate pairs, which are no Unicode.

use std::ops::Deref;

use hydraulis_core::codes;
use pyo3::exceptions::PyUnicodeEncodeError;
use pyo3::prelude::*;

use crate::convert::errors::invalid;

/// An argument for text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'a>(&'a str);

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        self.0
    }
}

impl<'a> FromPyObject<'a, '_> for Text<'a> {
    type Error = PyErr;

    fn extract(value: Borrowed<'a, '_, PyAny>) -> PyResult<Text<'a>> {
        let py = value.py();
        <&'a str>::extract(value).map(Text).map_err(|error| {
            if !error.is_instance_of::<PyUnicodeEncodeError>(py) {
                return error;
            }
            let place = error.value(py).getattr("start").map(|start| start.to_string()).unwrap_or_default();
            let message = format!(
                "character {place} of the text is half of a surrogate pair, which is no Unicode: read the text as UTF-8, \
                 or leave the character out"
            );
            invalid(py, &message, &codes::ARGUMENT_INVALID)
        })
    }
}
