//! Entries of a document, each read and checked by itself: a wrong one is refused by its name, and the others are solved.

use std::fmt::Display;

use serde::de::{DeserializeOwned, Error as _};
use serde_json::Value;

use crate::{Error, Result};

/// Greatest memory and greatest number: whole numbers up to it are exact.
pub(super) const MOST: f64 = 9_007_199_254_740_992.0;
/// The same as a whole number.
pub(super) const MOST_WHOLE: u64 = 1 << 53;
/// Greatest time, rate and coefficient: sums and products of a few of them are finite.
pub(super) const MOST_TIME: f64 = 1e60;
/// Most layers of a model.
pub(super) const MOST_LAYERS: usize = 100_000;

/// The entries of a list of the document, at least one.
pub(super) fn entries<'a>(document: &'a Value, key: &str) -> serde_json::Result<&'a [Value]> {
    let wrong = |why: &str| Err(serde_json::Error::custom(format!("{key} {why}: give a list with one entry at least")));
    match document.get(key) {
        None => wrong("is missing"),
        Some(Value::Array(entries)) if entries.is_empty() => wrong("is empty"),
        Some(Value::Array(entries)) => Ok(entries),
        Some(_) => wrong("is no list"),
    }
}

/// An entry as its type; the error names the field.
pub(super) fn read<T: DeserializeOwned>(entry: &Value) -> Result<T> {
    serde_path_to_error::deserialize(entry).map_err(|error| Error::InstanceUnreadable { why: error.to_string() })
}

/// Refuses a field unless its value is within its limit.
pub(super) fn require(holds: bool, field: impl Display, value: impl Display, limit: impl Display) -> Result<()> {
    let error =
        || Error::InstanceField { field: field.to_string(), value: value.to_string(), limit: limit.to_string() };
    if holds { Ok(()) } else { Err(error()) }
}

/// Refuses a list that is longer or shorter than it must be.
pub(super) fn require_length(field: impl Display, length: usize, expected: usize) -> Result<()> {
    require(length == expected, format!("the length of {field}"), length, expected)
}

/// Refuses layers above the most that solvers take.
pub(super) fn require_layers(layers: usize) -> Result<()> {
    require(layers <= MOST_LAYERS, "layers", layers, format!("at most {MOST_LAYERS}"))
}

/// Refuses a memory that is negative or too large.
pub(super) fn require_memory(field: impl Display, memory: f64) -> Result<()> {
    require((0.0..=MOST).contains(&memory), field, memory, "from 0 to 2^53")
}

/// Refuses memories of a list that are negative or too large.
pub(super) fn require_memories(field: &str, memories: &[f64]) -> Result<()> {
    memories.iter().enumerate().try_for_each(|(place, &memory)| require_memory(format!("{field}[{place}]"), memory))
}

/// Refuses a time that is negative or too large.
pub(super) fn require_time(field: impl Display, time: f64) -> Result<()> {
    require((0.0..=MOST_TIME).contains(&time), field, time, format!("from 0 to {MOST_TIME:e}"))
}

/// Refuses times of a list that are negative or too large.
pub(super) fn require_times(field: &str, times: &[f64]) -> Result<()> {
    times.iter().enumerate().try_for_each(|(place, &time)| require_time(format!("{field}[{place}]"), time))
}
