//! The profiles that ship with the core.

use crate::cost::CostProfile;
use crate::error::{ProfileError, Result};

/// Name and JSON text of each shipped profile.
///
/// The figures are the measured tables of the Hydraulis paper's artifact, restated in this project's format with their
/// units and source; two of the 32B table's fits are left out, and the document says why.
pub const PRESETS: [(&str, &str); 4] = [
    ("llama-7b-a800", include_str!("presets/llama-7b-a800.json")),
    ("llama-13b-a800", include_str!("presets/llama-13b-a800.json")),
    ("llama-32b-a800", include_str!("presets/llama-32b-a800.json")),
    ("llama-7b-a100-40g", include_str!("presets/llama-7b-a100-40g.json")),
];

/// The shipped profile of that name.
pub fn preset(name: &str) -> Result<CostProfile> {
    let found = PRESETS.iter().find(|(known, _)| *known == name);
    let (_, text) = found.ok_or_else(|| ProfileError::PresetUnknown {
        name: name.into(),
        known: PRESETS.map(|(known, _)| known).join(" "),
    })?;
    CostProfile::from_json(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_reads_and_bears_its_name() {
        for (name, _) in PRESETS {
            assert_eq!(preset(name).unwrap().name, name);
        }
        assert_eq!(preset("llama-1t").unwrap_err().code(), "profile_unknown");
    }
}
