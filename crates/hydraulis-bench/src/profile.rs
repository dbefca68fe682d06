//! Cost profiles by their command-line name.

use std::path::Path;

use hydraulis_core::cost::{CostProfile, preset};

use crate::error::Result;
use crate::workload::read_text;

/// Loads the preset with this name, or the profile in the JSON file at this path.
pub fn profile(name_or_path: &str) -> Result<CostProfile> {
    let path = Path::new(name_or_path);
    let is_path = name_or_path.contains(['/', '\\']) || path.extension().is_some();
    Ok(if is_path { CostProfile::from_json(&read_text(path)?) } else { preset(name_or_path) }?)
}
