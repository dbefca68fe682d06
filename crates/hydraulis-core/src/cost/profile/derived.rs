//! Schemes that a profile does not list, but that follow from its own: layer plans and splits of layers, by name.

use std::collections::BTreeSet;

use crate::cost::profile::CostProfile;
use crate::error::Result;
use crate::spec::{Scheme, StageSplit};

impl CostProfile {
    /// The same profile, with those of these schemes that it lacks and that follow from its own: a plan of two kinds of
    /// checkpointing from the entries of both kinds, and a split of the layers from the entry of the usual split.
    ///
    /// Schemes that do not follow from its entries stay unknown. A split of another number of layers is refused with
    /// `scheme_model_mismatch`.
    pub fn with_derived(self, schemes: &[Scheme]) -> Result<CostProfile> {
        let schemes: BTreeSet<Scheme> = schemes.iter().copied().collect();
        let is_missing = |profile: &CostProfile| schemes.iter().any(|&scheme| profile.scheme(scheme).is_err());
        self.on_each_device(|profile| if is_missing(&profile) { profile.derived(&schemes) } else { Ok(profile) })
    }

    fn derived(mut self, schemes: &BTreeSet<Scheme>) -> Result<CostProfile> {
        for &scheme in schemes {
            let usual = scheme.with_split(StageSplit::BY_COST).unwrap_or(scheme);
            let of_layers = self.scheme(usual).is_err().then(|| self.layer_plan_entry(usual)).transpose()?;
            self.schemes.extend(of_layers.flatten());
            let of_split = self.scheme(scheme).is_err().then(|| self.layer_split_entry(scheme)).transpose()?;
            self.schemes.extend(of_split.flatten());
        }
        self.checked()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{Efficiency, device, preset};
    use crate::spec::{CheckpointingKind, Cluster};

    fn of_kinds(kinds: &[CheckpointingKind]) -> CostProfile {
        let (model, device) = (preset("llama-7b-a800").unwrap().model.unwrap(), device("H100").unwrap());
        let efficiency = Efficiency::shipped(&device).unwrap();
        CostProfile::analytic(&model, &Cluster::new(16, 8).unwrap(), &device, kinds, &efficiency).unwrap()
    }

    fn named(schemes: &[&str]) -> Vec<Scheme> {
        schemes.iter().map(|scheme| scheme.parse().unwrap()).collect()
    }

    #[test]
    fn a_scheme_by_name_has_the_entry_that_a_search_has() {
        let profile = of_kinds(&[CheckpointingKind::None, CheckpointingKind::Selective, CheckpointingKind::Offload]);
        let searched = profile.clone().with_layer_plans(3).unwrap().with_layer_splits(2).unwrap();
        let added: Vec<Scheme> = searched.every_scheme().split_off(profile.schemes.len());
        assert!(added.len() > 1_000 && added.iter().any(|scheme| scheme.layer_plan().offloads()));
        assert_eq!(searched.clone().with_derived(&added).unwrap(), searched);
        let derived = profile.with_derived(&added).unwrap();
        assert_eq!(derived.schemes.len(), searched.schemes.len());
        for scheme in added {
            assert!(derived.scheme(scheme).unwrap() == searched.scheme(scheme).unwrap(), "{scheme}");
        }
    }

    #[test]
    fn what_does_not_follow_stays_unknown() {
        let profile = of_kinds(&[CheckpointingKind::None, CheckpointingKind::FullOffload]);
        let schemes = named(&["<tp2,full:12/32>", "<tp2,full-offload:12/32>", "<tp3>", "<pp2,split:20-12,selective>"]);
        assert_eq!(profile.clone().with_derived(&schemes).unwrap(), profile);
        let other_layers = named(&["<tp2,full:12/30>"]);
        let both = of_kinds(&[CheckpointingKind::None, CheckpointingKind::Full]);
        assert_eq!(both.clone().with_derived(&other_layers).unwrap(), both);
        let other_split = named(&["<pp2,split:20-10>"]);
        assert_eq!(both.with_derived(&other_split).unwrap_err().code(), "scheme_model_mismatch");
    }
}
