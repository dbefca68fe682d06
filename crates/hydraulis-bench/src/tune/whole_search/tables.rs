//! Numbers of a profile's tables: one outside its range is refused by its field and value.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::tune::reading::{MOST, MOST_TIME, require};
use crate::{Error, Result};

/// Least rate and least coefficient: its inverse is finite.
const LEAST: f64 = 1.0 / MOST_TIME;

/// A number above 0.
pub(super) fn positive(value: &Value, field: impl Display) -> Result<f64> {
    within(value, field, LEAST..=MOST_TIME, "a number above 0, from 1e-60 to 1e60")
}

/// A time from 0.
pub(super) fn time(value: &Value, field: impl Display) -> Result<f64> {
    within(value, field, 0.0..=MOST_TIME, "a number from 0 to 1e60")
}

/// Megabytes from 0.
pub(super) fn megabytes(value: &Value, field: impl Display) -> Result<f64> {
    within(value, field, 0.0..=MOST, "a number from 0 to 2^53")
}

fn within(value: &Value, field: impl Display, range: RangeInclusive<f64>, limit: &str) -> Result<f64> {
    let number = value.as_f64().filter(|number| range.contains(number));
    require(number.is_some(), field, value, limit)?;
    Ok(number.unwrap_or_default())
}

/// Megabytes by the number that is their key, times a factor; other keys are left out.
pub(super) fn by_number(value: &Value, field: &str, factor: f64) -> Result<BTreeMap<u64, f64>> {
    let numbered = object(value, field)?.iter().filter_map(|(key, value)| Some((key.parse().ok()?, value)));
    numbered.map(|(number, value)| Ok((number, megabytes(value, format!("{field}.{number}"))? * factor))).collect()
}

pub(super) fn object<'a>(value: &'a Value, name: &str) -> Result<&'a Map<String, Value>> {
    value.as_object().ok_or_else(|| unreadable(format!("{name} is no object")))
}

pub(super) fn unreadable(why: String) -> Error {
    Error::InstanceUnreadable { why }
}
