//! A profile of several devices: that of the first one, with the profile of each other device of the cluster.
//!
//! Times are each device's own. Memory figures follow the model, so those of the first profile hold on every device.

use serde::{Deserialize, Serialize};

use crate::cost::profile::{CostProfile, Excluded};
use crate::error::Result;

/// A device of the cluster besides the profile's first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OtherDevice {
    /// Rate at which its ranks take the times of its profile; at another rate their times change in inverse proportion.
    ///
    /// It puts ranks of all devices in one order, and compares the stages of a pipeline on several devices.
    pub rate: f64,
    /// Its profile, of the same schemes in the same order.
    pub profile: CostProfile,
}

impl CostProfile {
    /// A profile of this profile's devices and of others: of the schemes that all of them have. Its name joins theirs.
    ///
    /// Refused with `profile_invalid` if there is no such scheme, if a rate is not from 0.001 to 1,000, or if another profile
    /// is of several devices, or differs in model, type, sharding, or a scheme's layers or kind of context parallelism.
    pub fn with_other_devices(mut self, others: Vec<OtherDevice>) -> Result<CostProfile> {
        let names = others.iter().map(|other| other.profile.name.as_str());
        let name = std::iter::once(self.name.as_str()).chain(names).collect::<Vec<_>>().join(" + ");
        let known = std::mem::take(&mut self.other_devices);
        CostProfile { name, ..self }.joined(known.into_iter().chain(others).collect())
    }

    fn joined(mut self, mut others: Vec<OtherDevice>) -> Result<CostProfile> {
        let lacking = |scheme| others.iter().find(|other| other.profile.scheme(scheme).is_err());
        let reason = |other: &OtherDevice| format!("profile '{}' has no times of it", other.profile.name);
        let left_out = self
            .schemes
            .iter()
            .filter_map(|entry| Some(Excluded { scheme: entry.scheme, reason: reason(lacking(entry.scheme)?) }));
        self.excluded.extend(left_out);
        self.schemes.retain(|entry| lacking(entry.scheme).is_none());
        for other in &mut others {
            let entries = self.schemes.iter().filter_map(|entry| other.profile.scheme(entry.scheme).ok().cloned());
            other.profile.schemes = entries.collect();
            other.profile.strategies.clear();
        }
        let is_known = |scheme| self.schemes.iter().any(|entry| entry.scheme == scheme);
        for list in &mut self.strategies {
            list.strategies.retain(|strategy| strategy.schemes().iter().all(|&scheme| is_known(scheme)));
        }
        self.strategies.retain(|list| !list.strategies.is_empty());
        CostProfile { other_devices: others, ..self }.checked()
    }

    /// The profile with `change` applied to that of each device.
    pub(crate) fn on_each_device(mut self, change: impl Fn(CostProfile) -> Result<CostProfile>) -> Result<CostProfile> {
        if self.other_devices.is_empty() {
            return change(self);
        }
        let others = std::mem::take(&mut self.other_devices);
        let changed = |other: OtherDevice| Ok(OtherDevice { profile: change(other.profile)?, ..other });
        let others = others.into_iter().map(changed).collect::<Result<Vec<_>>>()?;
        change(self)?.joined(others)
    }

    /// The profile of a device, and the rate at which its ranks take that profile's times; those of the first device where
    /// there is no such device, which planners refuse.
    pub(crate) fn of_device(&self, device: u16) -> (&CostProfile, f64) {
        let other = usize::from(device).checked_sub(1).and_then(|place| self.other_devices.get(place));
        other.map_or((self, 1.0), |other| (&other.profile, other.rate))
    }

    /// Number of its devices.
    pub(crate) fn devices(&self) -> usize {
        1 + self.other_devices.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::preset;
    use crate::spec::Dtype;

    fn half_as_fast(scheme: &str) -> CostProfile {
        let mut profile = preset("llama-7b-a800").unwrap();
        for entry in &mut profile.schemes {
            entry.linear_ms_per_token *= if entry.scheme == scheme.parse().unwrap() { 3.0 } else { 2.0 };
        }
        CostProfile { name: "slow".into(), ..profile }
    }

    fn of_two(other: CostProfile) -> Result<CostProfile> {
        preset("llama-7b-a800").unwrap().with_other_devices(vec![OtherDevice { rate: 0.5, profile: other }])
    }

    #[test]
    fn a_profile_of_two_devices_has_the_schemes_of_both() {
        let mut other = half_as_fast("<tp8>");
        let left_out = other.schemes.pop().unwrap().scheme;
        let both = of_two(other).unwrap();
        assert_eq!(both.name, "llama-7b-a800 + slow");
        let error = both.scheme(left_out).unwrap_err().to_string();
        assert!(error.contains("left out: profile 'slow' has no times of it"), "{error}");
        assert!(both.schemes.len() + 1 == half_as_fast("<1>").schemes.len());
        assert_eq!(both.every_scheme(), both.of_device(1).0.every_scheme());
        assert_eq!((both.of_device(0).1, both.of_device(1).1, both.devices()), (1.0, 0.5, 2));
        for list in &both.strategies {
            assert!(list.strategies.iter().all(|strategy| !strategy.schemes().contains(&left_out)));
        }
        assert_eq!(CostProfile::from_json(&both.to_json()).unwrap(), both);
    }

    #[test]
    fn further_devices_follow_the_known_ones() {
        let further = OtherDevice { rate: 2.0, profile: CostProfile { name: "fast".into(), ..half_as_fast("<1>") } };
        let three = of_two(half_as_fast("<tp8>")).unwrap().with_other_devices(vec![further]).unwrap();
        assert_eq!((three.name.as_str(), three.devices()), ("llama-7b-a800 + slow + fast", 3));
        assert_eq!((three.of_device(1).1, three.of_device(2).1), (0.5, 2.0));
        assert_eq!(three.clone().with_other_devices(Vec::new()).unwrap(), three);
    }

    #[test]
    fn derived_schemes_have_times_of_each_device() {
        let both = of_two(half_as_fast("<tp8>")).unwrap();
        let split = both.clone().with_layer_splits(1).unwrap();
        assert!(split.schemes.len() > both.schemes.len());
        assert_eq!(split.of_device(1).0.schemes, half_as_fast("<tp8>").with_layer_splits(1).unwrap().schemes);
        assert_eq!(split.name, both.name);
    }

    #[test]
    fn profiles_that_do_not_belong_together_are_refused_by_field() {
        let refused = |other: CostProfile, rate: f64, field: &str| {
            let others = vec![OtherDevice { rate, profile: other }];
            let error = preset("llama-7b-a800").unwrap().with_other_devices(others).unwrap_err();
            assert_eq!(error.code(), "profile_invalid");
            assert!(error.to_string().contains(&format!("other_devices[0].{field} is")), "{error}");
        };
        refused(half_as_fast("<1>"), 0.0, "rate");
        refused(half_as_fast("<1>"), f64::NAN, "rate");
        refused(of_two(half_as_fast("<1>")).unwrap(), 1.0, "profile.other_devices");
        refused(
            CostProfile { model: preset("llama-13b-a800").unwrap().model, ..half_as_fast("<1>") },
            1.0,
            "profile.model",
        );
        refused(CostProfile { dtype: Some(Dtype::Float64), ..half_as_fast("<1>") }, 1.0, "profile.dtype");
        let mut other = half_as_fast("<1>");
        let split = other.schemes.iter_mut().find(|entry| entry.scheme.pp() == 2).unwrap();
        split.stage_layers = Some(vec![1, 31]);
        refused(other, 1.0, "profile.schemes");
        let mut document: serde_json::Value =
            serde_json::from_str(&of_two(half_as_fast("<1>")).unwrap().to_json()).unwrap();
        document["schemes"].as_array_mut().unwrap().pop();
        let error = CostProfile::from_json(&document.to_string()).unwrap_err();
        assert!(error.to_string().contains("other_devices[0].profile.schemes is"), "{error}");
        let none = CostProfile { schemes: half_as_fast("<1>").schemes[..1].to_vec(), ..half_as_fast("<1>") };
        let first = CostProfile { schemes: half_as_fast("<1>").schemes[1..].to_vec(), ..half_as_fast("<1>") };
        assert!(first.with_other_devices(vec![OtherDevice { rate: 1.0, profile: none }]).is_err());
    }
}
