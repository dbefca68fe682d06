//! Context degree and recomputation for each length, and the groups of lengths that they make: HBP's tables.
//!
//! - `length L`: the measured setting of least iteration time that fits into memory. Objective: seconds of an iteration.
//! - `groups`: the length of least iteration time and the greatest one, each with its setting, and what one rank takes of
//!   each; groups below the fastest length are merged with it. Objective: the fastest length's seconds.

use serde::Deserialize;
use serde_json::{Value, json};

use super::Instance;

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

pub(super) fn instances(document: &Value) -> serde_json::Result<Vec<Instance>> {
    let tables = document.as_object().into_iter().flatten().filter(|(key, _)| is_table(key));
    let mut instances = Vec::new();
    for (key, table) in tables {
        let rows = Vec::<Row>::deserialize(table)?;
        if key == "packing_group_profile" {
            let expected = &document["expected_auto_groups"]["groups"];
            let reference = expected.as_array().and_then(|groups| {
                let fastest = groups.first()?.as_u64()?;
                rows.iter().find(|row| row.len == fastest)?.iter_s
            });
            instances.push(Instance::new("groups".to_owned(), reference, move || groups(&rows)));
            continue;
        }
        let mut lengths: Vec<u64> = rows.iter().map(|row| row.len).collect();
        lengths.dedup();
        for length in lengths {
            let own: Vec<Row> = rows.iter().filter(|row| row.len == length).cloned().collect();
            let expected = &document["expected_choice"][length.to_string()];
            let is_expected =
                |row: &&Row| expected["sp"].as_u64() == Some(row.sp) && expected["gc"].as_u64() == Some(row.gc_layers);
            let reference = own.iter().find(is_expected).and_then(|row| row.iter_s);
            instances.push(Instance::new(format!("length {length}"), reference, move || {
                let (row, time) = fastest(&own).ok_or("memory_too_small")?;
                Ok((time, json!({"sp": row.sp, "gc_layers": row.gc_layers})))
            }));
        }
    }
    Ok(instances)
}

/// The measured row of least time that fits.
fn fastest(rows: &[Row]) -> Option<(&Row, f64)> {
    let fits = |row: &&Row| row.mem_gb.is_some_and(|memory| memory <= MEMORY_GB);
    let timed = rows.iter().filter(fits).filter_map(|row| Some((row, row.iter_s?)));
    timed.min_by(|one, other| one.1.total_cmp(&other.1))
}

fn groups(rows: &[Row]) -> super::Solved {
    let (best, time) = fastest(rows).ok_or("memory_too_small")?;
    let longest = rows.iter().max_by_key(|row| row.len).ok_or("memory_too_small")?;
    let mut groups: Vec<(u64, u64)> =
        vec![(best.len / best.sp, 1), (longest.len / longest.sp, 1), (best.len, best.sp), (longest.len, longest.sp)];
    // Shorter groups than the fastest are part of it; of equal ones the first needs the fewest ranks.
    groups.retain(|(length, _)| *length >= best.len);
    groups.sort_unstable();
    groups.dedup_by_key(|(length, _)| *length);
    let (lengths, degrees): (Vec<u64>, Vec<u64>) = groups.into_iter().unzip();
    Ok((time, json!({"groups": lengths, "sp": degrees})))
}
