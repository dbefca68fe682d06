//! A cost profile as its document gives it.

use serde::{Deserialize, Deserializer};

use crate::cost::profile::CostProfile;
use crate::cost::{Excluded, Hardware, Memory, OtherDevice, SchemeProfile, StrategyList};
use crate::spec::{Dtype, ModelShape, ShardingKind};

/// The fields of a [`CostProfile`], none of which is checked yet.
#[derive(Deserialize)]
#[serde(remote = "CostProfile", deny_unknown_fields)]
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
    #[serde(default)]
    sharding: ShardingKind,
    memory: Memory,
    schemes: Vec<SchemeProfile>,
    #[serde(default)]
    excluded: Vec<Excluded>,
    #[serde(default)]
    strategies: Vec<StrategyList>,
    #[serde(default)]
    other_devices: Vec<OtherDevice>,
}

impl<'de> Deserialize<'de> for CostProfile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<CostProfile, D::Error> {
        ProfileDocument::deserialize(deserializer)?.checked().map_err(serde::de::Error::custom)
    }
}
