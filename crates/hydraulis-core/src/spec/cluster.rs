//! A cluster's ranks, their nodes, and where they differ their speed and memory.

use std::fmt;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::error::{ClusterError, Error, Grouped, Result};

/// Largest number of GPUs, ten times the largest training cluster of 2026. The limit refuses a typing error before an
/// allocation fails.
pub(crate) const MAX_GPUS: u32 = 1 << 20;

/// A cluster of GPUs in equal nodes. Each GPU is one rank; ranks are numbered node by node.
///
/// Ranks may differ in three ways from those that a profile measured. A rank of rate 0.5 takes twice the profile's times.
/// A rank's memory may be larger or smaller than the profile's device. A rank may be another device of the profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "ClusterFields")]
pub struct Cluster {
    gpus: u32,
    gpus_per_node: u32,
    /// Rate of each rank; empty if none is stated, or all are 1 on the profile's first device.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rates: Vec<f64>,
    /// Bytes of each rank; empty if all have the profile's memory.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    memory_bytes: Vec<u64>,
    /// Device of each rank; empty if all are the profile's first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    devices: Vec<u16>,
}

/// The fields of a cluster in a document, before validation.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterFields {
    gpus: u32,
    gpus_per_node: u32,
    #[serde(default)]
    rates: Vec<f64>,
    #[serde(default)]
    memory_bytes: Vec<u64>,
    #[serde(default)]
    devices: Vec<u16>,
}

impl TryFrom<ClusterFields> for Cluster {
    type Error = Error;
    fn try_from(fields: ClusterFields) -> Result<Cluster> {
        let mut cluster = Cluster::new(fields.gpus, fields.gpus_per_node)?;
        if !fields.devices.is_empty() {
            cluster = cluster.with_devices(fields.devices)?;
        }
        if !fields.rates.is_empty() {
            cluster = cluster.with_rates(fields.rates)?;
        }
        if fields.memory_bytes.is_empty() { Ok(cluster) } else { cluster.with_memory_bytes(fields.memory_bytes) }
    }
}

impl Cluster {
    /// Limits of a rank's rate. They refuse typing errors; a rank slower than the least is of no use to any plan.
    pub(crate) const RATES: RangeInclusive<f64> = 1e-3..=1e3;

    /// A cluster of `gpus` GPUs in nodes of `gpus_per_node`. A part of one node is a valid cluster.
    pub fn new(gpus: u32, gpus_per_node: u32) -> Result<Cluster> {
        let whole_nodes =
            gpus_per_node > 0 && gpus <= MAX_GPUS && (gpus <= gpus_per_node || gpus.is_multiple_of(gpus_per_node));
        if gpus == 0 || !whole_nodes {
            return Err(Error::ClusterShape { gpus: gpus.into(), gpus_per_node: gpus_per_node.into() });
        }
        Ok(Cluster { gpus, gpus_per_node, rates: Vec::new(), memory_bytes: Vec::new(), devices: Vec::new() })
    }

    /// The same cluster with a rate for each rank: its speed relative to the ranks that the profile measured.
    ///
    /// Refused with `argument_invalid` if their number is not that of the ranks, or if a rate is not finite, below
    /// 0.001 or above 1,000.
    pub fn with_rates(self, rates: Vec<f64>) -> Result<Cluster> {
        self.expect_one_for_each_rank("rates", rates.len())?;
        if let Some(rank) = rates.iter().position(|rate| !Cluster::RATES.contains(rate)) {
            let (least, limit) = Cluster::RATES.into_inner();
            return Err(ClusterError::Rate { rank, rate: rates[rank].to_string(), least, limit }.into());
        }
        // With devices and without rates each rank would have its device's.
        let is_usual = self.devices.is_empty() && rates.iter().all(|rate| rate.total_cmp(&1.0).is_eq());
        Ok(Cluster { rates: if is_usual { Vec::new() } else { rates }, ..self })
    }

    /// The same cluster with the memory of each rank, in bytes, in place of the profile's.
    ///
    /// Refused with `argument_invalid` if their number is not that of the ranks, or if a rank has none.
    pub fn with_memory_bytes(self, memory_bytes: Vec<u64>) -> Result<Cluster> {
        self.expect_one_for_each_rank("memory_bytes", memory_bytes.len())?;
        if let Some(rank) = memory_bytes.iter().position(|&bytes| bytes == 0) {
            return Err(ClusterError::NoMemory { rank }.into());
        }
        Ok(Cluster { memory_bytes, ..self })
    }

    /// The same cluster with the device of each rank: 0 for the profile's first, `k` for the `k`-th of its other devices.
    ///
    /// Refused with `argument_invalid` if their number is not that of the ranks.
    pub fn with_devices(self, devices: Vec<u16>) -> Result<Cluster> {
        self.expect_one_for_each_rank("devices", devices.len())?;
        let is_uniform = devices.iter().all(|&device| device == 0);
        Ok(Cluster { devices: if is_uniform { Vec::new() } else { devices }, ..self })
    }

    fn expect_one_for_each_rank(&self, field: &'static str, given: usize) -> Result<()> {
        let matches = u32::try_from(given).is_ok_and(|given| given == self.gpus);
        if matches { Ok(()) } else { Err(ClusterError::RankCount { field, given, gpus: self.gpus }.into()) }
    }

    /// Number of ranks.
    pub fn gpus(&self) -> u32 {
        self.gpus
    }

    /// Number of ranks in a node.
    pub fn gpus_per_node(&self) -> u32 {
        self.gpus_per_node
    }

    /// Whether every rank is the profile's first device and has its speed and memory.
    pub fn is_uniform(&self) -> bool {
        self.rates.is_empty() && self.memory_bytes.is_empty() && self.devices.is_empty()
    }

    /// Whether some ranks have more memory than others.
    pub fn differs_in_memory(&self) -> bool {
        self.memory_bytes.windows(2).any(|pair| pair[0] != pair[1])
    }

    /// The rate of each rank; none if none is stated, or all are 1 on the profile's first device.
    pub fn rates(&self) -> Option<&[f64]> {
        (!self.rates.is_empty()).then_some(self.rates.as_slice())
    }

    /// The memory of each rank in bytes; none if all have the profile's.
    pub fn memory_bytes(&self) -> Option<&[u64]> {
        (!self.memory_bytes.is_empty()).then_some(self.memory_bytes.as_slice())
    }

    /// The device of each rank; none if all are the profile's first.
    pub fn devices(&self) -> Option<&[u16]> {
        (!self.devices.is_empty()).then_some(self.devices.as_slice())
    }

    /// The device of a rank.
    pub fn device(&self, rank: u32) -> u16 {
        self.devices.get(rank as usize).copied().unwrap_or_default()
    }

    /// The rate of a rank.
    pub fn rate(&self, rank: u32) -> f64 {
        self.rates.get(rank as usize).copied().unwrap_or(1.0)
    }

    /// The memory of a rank in bytes; none if it is the profile's.
    pub fn memory_of(&self, rank: u32) -> Option<u64> {
        self.memory_bytes.get(rank as usize).copied()
    }
}

impl fmt::Display for Cluster {
    /// The ranks and nodes, and the range of rates and memory where ranks differ from the profile's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} GPUs in nodes of {}", Grouped(self.gpus), self.gpus_per_node)?;
        if let Some(rates) = self.rates() {
            let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
            let greatest = rates.iter().copied().fold(0.0, f64::max);
            write!(f, ", of rates {least} to {greatest}")?;
        }
        if let (Some(least), Some(most)) = (self.memory_bytes.iter().min(), self.memory_bytes.iter().max()) {
            write!(f, ", of {} to {} bytes", Grouped(least), Grouped(most))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_nodes_and_parts_of_one_node_are_clusters() {
        assert!(Cluster::new(64, 8).is_ok());
        assert!(Cluster::new(4, 8).is_ok());
        for (gpus, per_node) in [(0, 8), (8, 0), (12, 8), (MAX_GPUS + 8, 8)] {
            assert_eq!(Cluster::new(gpus, per_node).unwrap_err().code(), "argument_invalid");
        }
    }

    #[test]
    fn rates_and_memory_are_stated_for_each_rank_and_within_limits() {
        let cluster = || Cluster::new(4, 2).unwrap();
        assert_eq!(cluster().with_rates(vec![1.0; 4]).unwrap(), cluster());
        let slow = cluster().with_rates(vec![1.0, 0.5, 1.0, 1e3]).unwrap();
        assert_eq!((slow.rate(1), slow.rate(3), slow.is_uniform(), slow.memory_of(0)), (0.5, 1e3, false, None));
        for bad in [0.0, -1.0, 9e-4, 1e3 + 1.0, f64::NAN, f64::INFINITY] {
            let error = cluster().with_rates(vec![1.0, 1.0, bad, 1.0]).unwrap_err();
            assert_eq!(error.code(), "argument_invalid");
            assert!(error.to_string().contains(&format!("rank 2 has rate {bad}")), "{error}");
        }
        assert_eq!(cluster().with_devices(vec![0; 4]).unwrap(), cluster());
        let two = cluster().with_devices(vec![0, 0, 1, 1]).unwrap();
        assert_eq!((two.device(1), two.device(2), two.is_uniform()), (0, 1, false));
        assert_eq!(two.with_rates(vec![1.0; 4]).unwrap().rates(), Some(&[1.0; 4][..]));
        let small = cluster().with_memory_bytes(vec![9, 9, 9, 7]).unwrap();
        assert_eq!((small.memory_of(3), small.rate(3)), (Some(7), 1.0));
        for error in [
            cluster().with_rates(vec![1.0; 3]).unwrap_err(),
            cluster().with_memory_bytes(vec![9; 5]).unwrap_err(),
            cluster().with_devices(vec![1; 2]).unwrap_err(),
            cluster().with_memory_bytes(vec![9, 9, 0, 9]).unwrap_err(),
        ] {
            assert_eq!(error.code(), "argument_invalid", "{error}");
        }
    }

    #[test]
    fn a_document_states_rates_and_memory_only_where_ranks_differ() {
        let cluster = Cluster::new(4, 2).unwrap();
        let text = |cluster: &Cluster| serde_json::to_string(cluster).unwrap();
        assert_eq!(text(&cluster), r#"{"gpus":4,"gpus_per_node":2}"#);
        let mixed = cluster.with_rates(vec![1.0, 1.0, 0.5, 0.5]).unwrap().with_memory_bytes(vec![5; 4]).unwrap();
        assert_eq!(serde_json::from_str::<Cluster>(&text(&mixed)).unwrap(), mixed);
        let other = Cluster::new(4, 2).unwrap().with_devices(vec![0, 0, 1, 1]).unwrap();
        assert_eq!(text(&other), r#"{"gpus":4,"gpus_per_node":2,"devices":[0,0,1,1]}"#);
        let at_usual_rates = other.clone().with_rates(vec![1.0; 4]).unwrap();
        for one in [other, at_usual_rates] {
            assert_eq!(serde_json::from_str::<Cluster>(&text(&one)).unwrap(), one);
        }
        assert!(serde_json::from_str::<Cluster>(r#"{"gpus":4,"gpus_per_node":2,"devices":[1,1]}"#).is_err());
        assert!(serde_json::from_str::<Cluster>(r#"{"gpus":4,"gpus_per_node":2,"rates":[1,1,0,1]}"#).is_err());
        assert!(serde_json::from_str::<Cluster>(r#"{"gpus":4,"gpus_per_node":2,"rates":[2,2]}"#).is_err());
    }
}
