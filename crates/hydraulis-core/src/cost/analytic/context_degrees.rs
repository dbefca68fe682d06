//! Context degrees of a table that has none, by the ratios of an analytic profile.
//!
//! A scheme `<tp,cp>` gets the figures of the table's `<tp>`, each times the ratio of the two schemes in the analytic
//! profile of the table's model and device, at the data sheet's link rates. What the table knows better than arithmetic,
//! such as the speed of the kernels and the bytes of an activation, so stays in the derived figures. The forward's share
//! and the optimizer's bytes are those of `<tp>`. `docs/cost-profile.md` states the error.

use crate::cost::analytic::{Device, Efficiency, MOST_CP, device, powers, predicted};
use crate::cost::profile::SchemeProfile;
use crate::cost::{CostProfile, PerStage};
use crate::error::{ProfileError, Result};
use crate::spec::{Cluster, ModelShape, Scheme};
use crate::units::{count, whole};

/// Nodes of the cluster for which memory is predicted; its ratio hardly depends on them.
const NODES: u32 = 32;

impl CostProfile {
    /// The same profile with a derived scheme for each context degree that divides a tensor rank's heads, of each scheme
    /// that has neither stages nor context ranks. A scheme that the profile has or leaves out is not derived.
    ///
    /// The name of the result ends in `,cp`, and its source says which schemes are derived.
    pub fn with_context_degrees(self) -> Result<CostProfile> {
        self.on_each_device(CostProfile::context_degrees_added)
    }

    fn context_degrees_added(mut self) -> Result<CostProfile> {
        let unknown = || ProfileError::ModelUnknown { profile: self.name.clone() };
        let model = self.model.clone().ok_or_else(unknown)?;
        let gpus_per_node = self.hardware.gpus_per_node;
        let device = device(&self.hardware.device)?;
        let ratios = Ratios {
            model,
            efficiency: Efficiency::shipped(&device)?,
            device,
            cluster: Cluster::new(gpus_per_node.saturating_mul(NODES), gpus_per_node)?,
        };
        let mut derived = Vec::new();
        for base in self.schemes.iter().filter(|entry| entry.scheme.cp() == 1 && entry.scheme.pp() == 1) {
            for scheme in ratios.degrees(base.scheme)? {
                let is_known = self.schemes.iter().any(|entry| entry.scheme == scheme)
                    || self.excluded.iter().any(|entry| entry.scheme == scheme);
                if !is_known {
                    derived.push(ratios.derived(base, scheme)?);
                }
            }
        }
        if let Some(last) = derived.last() {
            self.name.push_str(",cp");
            let derivation =
                "are derived and not measured: figures without context ranks times ratios of an analytic profile";
            self.source =
                format!("{}; the last {} schemes, to {}, {derivation}", self.source, derived.len(), last.scheme);
            self.schemes.extend(derived);
        }
        self.checked()
    }
}

/// The analytic profile whose ratios are taken.
struct Ratios {
    model: ModelShape,
    device: Device,
    cluster: Cluster,
    efficiency: Efficiency,
}

impl Ratios {
    /// The scheme with each of its context degrees.
    fn degrees(&self, base: Scheme) -> Result<Vec<Scheme>> {
        let heads = self.model.fields().num_attention_heads / u64::from(base.tp());
        powers(MOST_CP)
            .skip(1)
            .filter(|&cp| heads.is_multiple_of(cp.into()) && heads > 0)
            .map(|cp| Ok(Scheme::new(base.tp(), cp, 1)?.with_layers(base.layer_plan())))
            .collect()
    }

    fn derived(&self, base: &SchemeProfile, scheme: Scheme) -> Result<SchemeProfile> {
        let predicted = |scheme| predicted(&self.model, scheme, &self.device, &self.cluster, &self.efficiency);
        let (from, to) = (predicted(base.scheme)?, predicted(scheme)?);
        let ratio = |part: fn(&SchemeProfile) -> f64| part(&to) / part(&from);
        let resident = ratio(|entry| count(entry.resident_bytes.of(0)));
        let activations = ratio(|entry| entry.activation_bytes_per_token.of(0));
        let host = |entry: &SchemeProfile| entry.host_bytes_per_token.as_ref().map(|host| host.of(0));
        let hosts = host(base).zip(host(&from)).zip(host(&to));
        let on_host = hosts.map(|((own, from), to)| if from > 0.0 { own * to / from } else { own });
        Ok(SchemeProfile {
            scheme,
            context: to.context,
            quadratic_ms_per_token2: base.quadratic_ms_per_token2 * ratio(|entry| entry.quadratic_ms_per_token2),
            linear_ms_per_token: base.linear_ms_per_token * ratio(|entry| entry.linear_ms_per_token),
            fixed_ms: base.fixed_ms * ratio(|entry| entry.fixed_ms),
            resident_bytes: PerStage::Fullest(whole(count(base.resident_bytes.of(0)) * resident)),
            activation_bytes_per_token: PerStage::Fullest(base.activation_bytes_per_token.of(0) * activations),
            host_bytes_per_token: on_host.map(PerStage::Fullest),
            fit: None,
            ..base.clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::preset;
    use crate::cost::profile::Excluded;
    use crate::spec::CheckpointingKind;

    fn of(profile: &CostProfile, text: &str) -> SchemeProfile {
        profile.scheme(text.parse().unwrap()).unwrap().clone()
    }

    #[test]
    fn a_derived_scheme_has_the_analytic_ratio_to_its_base() {
        let table = preset("llama-32b-a800").unwrap();
        let profile = table.clone().with_context_degrees().unwrap();
        assert_eq!(profile.schemes[..table.schemes.len()], table.schemes);
        assert_eq!(profile.name, "llama-32b-a800,cp");
        assert!(profile.source.contains("to <tp16,cp4>, are derived and not measured"), "{}", profile.source);
        let (model, on) = (table.model.clone().unwrap(), device("A800").unwrap());
        let cluster = Cluster::new(256, 8).unwrap();
        let none = [CheckpointingKind::None];
        let analytic = CostProfile::analytic(&model, &cluster, &on, &none, &Efficiency::shipped(&on).unwrap()).unwrap();
        let derived = &profile.schemes[table.schemes.len()..];
        assert!(derived.len() >= 8);
        for entry in derived {
            let base = format!("<tp{}>", entry.scheme.tp());
            let (measured, from, to) =
                (of(&table, &base), of(&analytic, &base), of(&analytic, &entry.scheme.to_string()));
            let parts: [fn(&SchemeProfile) -> f64; 5] = [
                |entry| entry.quadratic_ms_per_token2,
                |entry| entry.linear_ms_per_token,
                |entry| entry.fixed_ms,
                |entry| entry.activation_bytes_per_token.of(0),
                |entry| count(entry.resident_bytes.of(0)),
            ];
            for part in parts {
                let ratio = part(entry) / part(&measured) / (part(&to) / part(&from));
                assert!((ratio - 1.0).abs() < 1e-9, "{}: {ratio}", entry.scheme);
            }
            assert!(entry.context == to.context && entry.fit.is_none());
        }
    }

    #[test]
    fn known_and_excluded_schemes_are_not_derived() {
        let once = preset("llama-7b-a800").unwrap().with_context_degrees().unwrap();
        assert_eq!(once.clone().with_context_degrees().unwrap(), once);
        let mut table = preset("llama-7b-a800").unwrap();
        let scheme: Scheme = "<tp2,cp4>".parse().unwrap();
        assert!(once.scheme(scheme).is_ok());
        table.excluded.push(Excluded { scheme, reason: "its measurement was disturbed".into() });
        assert!(table.with_context_degrees().unwrap().scheme(scheme).is_err());
    }

    #[test]
    fn kinds_of_checkpointing_are_kept() {
        let (model, on) = (preset("llama-7b-a800").unwrap().model.unwrap(), device("H100").unwrap());
        let cluster = Cluster::new(256, 8).unwrap();
        let whole =
            CostProfile::analytic(&model, &cluster, &on, &CheckpointingKind::ALL, &Efficiency::shipped(&on).unwrap())
                .unwrap();
        let mut without = whole.clone();
        without.schemes.retain(|entry| entry.scheme.cp() == 1);
        let derived = without.with_context_degrees().unwrap();
        let scheme: Scheme = "<tp2,cp2,full>".parse().unwrap();
        let [own, other] = [&derived, &whole].map(|profile| profile.scheme(scheme).unwrap().linear_ms_per_token);
        assert!((own / other - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_table_without_model_or_of_another_device_is_refused() {
        let mut table = preset("llama-7b-a800").unwrap();
        table.hardware.device = "V100".into();
        assert_eq!(table.clone().with_context_degrees().unwrap_err().code(), "profile_unknown");
        table.model = None;
        assert_eq!(table.with_context_degrees().unwrap_err().code(), "profile_invalid");
    }
}
