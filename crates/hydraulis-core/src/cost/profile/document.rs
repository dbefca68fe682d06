//! A cost profile as its document gives it.

use serde::Deserialize;

use crate::cost::profile::CostProfile;
use crate::cost::{Excluded, Hardware, Memory, SchemeProfile, StrategyList};
use crate::error::{Error, Result};
use crate::spec::{Dtype, ModelShape};

/// The fields of a [`CostProfile`], none of which is checked yet.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProfileDocument {
    format: String,
    name: String,
    source: String,
    hardware: Hardware,
    model: Option<ModelShape>,
    dtype: Option<Dtype>,
    attention: Option<String>,
    compiled: Option<bool>,
    float8: Option<bool>,
    symmetric_memory: Option<bool>,
    memory: Memory,
    schemes: Vec<SchemeProfile>,
    #[serde(default)]
    excluded: Vec<Excluded>,
    #[serde(default)]
    strategies: Vec<StrategyList>,
}

impl TryFrom<ProfileDocument> for CostProfile {
    type Error = Error;

    fn try_from(document: ProfileDocument) -> Result<CostProfile> {
        let ProfileDocument {
            format,
            name,
            source,
            hardware,
            model,
            dtype,
            attention,
            compiled,
            float8,
            symmetric_memory,
            memory,
            schemes,
            excluded,
            strategies,
        } = document;
        CostProfile {
            format,
            name,
            source,
            hardware,
            model,
            dtype,
            attention,
            compiled,
            float8,
            symmetric_memory,
            memory,
            schemes,
            excluded,
            strategies,
        }
        .checked()
    }
}
