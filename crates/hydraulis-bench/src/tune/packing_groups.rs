//! Context degree and recomputation for each length, and the groups of lengths that they make: HBP's tables.
//!
//! - `length L`: the measured setting of least iteration time that fits into memory. Objective: seconds of an iteration.
//! - `groups`: the length of least iteration time and the greatest one, each with its fastest setting that fits, and what
//!   one rank takes of each; groups below the fastest length are merged with it. Objective: the fastest length's seconds.

use serde::Deserialize;
use serde_json::{Value, json};

use super::reading::{entries, read, require, require_memory, require_times};
use super::{Instance, Refusal};
use crate::{Error, Result};

/// Memory of the device that the tables were measured on, in GB.
const MEMORY_GB: f64 = 80.0;

#[derive(Clone, Debug, Deserialize)]
struct Row {
    #[serde(alias = "group")]
    len: u64,
    sp: u64,
    #[serde(alias = "gc")]
    gc_layers: u64,
    #[serde(alias = "mem")]
    mem_gb: Option<f64>,
    iter_s: Option<f64>,
}

pub(super) fn is_kind(document: &Value) -> bool {
    document.as_object().is_some_and(|keys| keys.keys().any(|key| is_table(key)))
}

fn is_table(key: &str) -> bool {
    key.starts_with("profile_") || key == "packing_group_profile"
}

pub(super) fn instances(document: &Value) -> Vec<Instance> {
    let tables = document.as_object().into_iter().flatten().filter(|(key, _)| is_table(key));
    let mut instances = Vec::new();
    for (key, _) in tables {
        let rows = match entries(document, key) {
            Ok(rows) => rows,
            Err(error) => {
                let error = Error::InstanceUnreadable { why: error.to_string() };
                instances.push(Instance::refused(key.clone(), error));
                continue;
            }
        };
        if key == "packing_group_profile" {
            instances.push(groups_instance(document, rows));
        } else {
            instances.extend(length_instances(document, key, rows));
        }
    }
    instances
}

fn groups_instance(document: &Value, rows: &[Value]) -> Instance {
    let rows = match rows.iter().enumerate().map(row).collect::<Result<Vec<Row>>>() {
        Ok(rows) => rows,
        Err(error) => return Instance::refused("groups".to_owned(), error),
    };
    let expected = &document["expected_auto_groups"]["groups"];
    let reference = expected.as_array().and_then(|groups| {
        let fastest = groups.first()?.as_u64()?;
        rows.iter().find(|row| row.len == fastest)?.iter_s
    });
    Instance::new("groups".to_owned(), reference, move || groups(&rows))
}

/// An instance for each length of a table; a length with a wrong row is refused, for its best setting is unknown.
fn length_instances(document: &Value, table: &str, rows: &[Value]) -> Vec<Instance> {
    let length = |row: &Value| ["len", "group"].iter().find_map(|key| row[key].as_u64());
    let Some(mut lengths) = rows.iter().map(length).collect::<Option<Vec<u64>>>() else {
        let error = rows.iter().enumerate().find_map(|one| row(one).err());
        let error = error.unwrap_or(Error::InstanceUnreadable { why: "a row has no length".to_owned() });
        return vec![Instance::refused(table.to_owned(), error)];
    };
    lengths.sort_unstable();
    lengths.dedup();
    let of_length = |this: u64| {
        let name = format!("length {this}");
        let own = rows.iter().enumerate().filter(|(_, row)| length(row) == Some(this));
        let own = match own.map(row).collect::<Result<Vec<Row>>>() {
            Ok(own) => own,
            Err(error) => return Instance::refused(name, error),
        };
        let expected = &document["expected_choice"][this.to_string()];
        let is_expected =
            |row: &&Row| expected["sp"].as_u64() == Some(row.sp) && expected["gc"].as_u64() == Some(row.gc_layers);
        let reference = own.iter().find(is_expected).and_then(|row| row.iter_s);
        Instance::new(name, reference, move || {
            let (row, time) = fastest(&own)?;
            Ok((time, json!({"sp": row.sp, "gc_layers": row.gc_layers})))
        })
    };
    lengths.into_iter().map(of_length).collect()
}

/// A row of a table by its place; errors name the place.
fn row((place, entry): (usize, &Value)) -> Result<Row> {
    let row: Row = read(entry).map_err(|error| match error {
        Error::InstanceUnreadable { why } => Error::InstanceUnreadable { why: format!("row {place}: {why}") },
        other => other,
    })?;
    require(row.len > 0, format!("len of row {place}"), row.len, "at least 1")?;
    require(row.sp > 0, format!("sp of row {place}"), row.sp, "at least 1")?;
    require_memory(format!("mem_gb of row {place}"), row.mem_gb.unwrap_or_default())?;
    require_times(&format!("iter_s of row {place}"), &[row.iter_s.unwrap_or_default()])?;
    require(row.iter_s.is_none_or(|time| time >= 0.0), format!("iter_s of row {place}"), "negative", "at least 0")?;
    Ok(row)
}

/// The measured row of least time that fits.
fn fastest(rows: &[Row]) -> std::result::Result<(&Row, f64), Refusal> {
    let fits = |row: &&Row| row.mem_gb.is_some_and(|memory| memory <= MEMORY_GB);
    let timed = rows.iter().filter(fits).filter_map(|row| Some((row, row.iter_s?)));
    let found = timed.min_by(|one, other| one.1.total_cmp(&other.1));
    // A row that fits but was not timed is no lack of memory.
    found.ok_or_else(|| if rows.iter().any(|row| fits(&row)) { "time_missing" } else { "memory_too_small" }.into())
}

fn groups(rows: &[Row]) -> super::Solved {
    let (best, time) = fastest(rows)?;
    let greatest = rows.iter().map(|row| row.len).max().unwrap_or_default();
    let of_greatest: Vec<Row> = rows.iter().filter(|row| row.len == greatest).cloned().collect();
    let (longest, _) = fastest(&of_greatest)?;
    let mut groups: Vec<(u64, u64)> =
        vec![(best.len / best.sp, 1), (longest.len / longest.sp, 1), (best.len, best.sp), (longest.len, longest.sp)];
    // Shorter groups than the fastest are part of it; of equal ones the first needs the fewest ranks.
    groups.retain(|(length, _)| *length >= best.len);
    groups.sort_unstable();
    groups.dedup_by_key(|(length, _)| *length);
    let (lengths, degrees): (Vec<u64>, Vec<u64>) = groups.into_iter().unzip();
    Ok((time, json!({"groups": lengths, "sp": degrees})))
}
