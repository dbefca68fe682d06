//! A cost profile without hardware: the work by arithmetic, the device by its data sheet, efficiencies from measured
//! devices.
//!
//! It serves to plan before a cluster is available, and to compare devices. A measured profile is better:
//! `docs/cost-model.md` gives the error of predicting each shipped table from the others.

mod context_degrees;
mod device;
mod efficiency;
mod memory;
mod work;

pub use device::{DEVICES, Device, MeasuredDevice, device};
pub use efficiency::Efficiency;

use work::Work;

use crate::cost::CostProfile;
use crate::cost::host_copies::HostCopies;
use crate::cost::profile::{Hardware, Memory, SchemeProfile};
use crate::cost::recomputation::Recomputation;
use crate::error::Result;
use crate::spec::{CheckpointingKind, Cluster, ContextKind, LayerSplit, ModelShape, Scheme};
use crate::units::count;

/// Widest tensor parallelism in the tables, two nodes of 8.
const MOST_TP: u16 = 16;
/// Most stages in the tables.
const MOST_PP: u16 = 16;
/// With more context ranks the heads of most models run out.
const MOST_CP: u16 = 64;
/// Caps are multiples of this, as in the tables.
const TOKEN_MULTIPLE: u64 = 128;

impl CostProfile {
    /// Predicts the profile of a model on a device, for all schemes that divide the model and fit the cluster, under
    /// each kind of checkpointing.
    pub fn analytic(
        model: &ModelShape,
        cluster: &Cluster,
        device: &Device,
        kinds: &[CheckpointingKind],
        efficiency: &Efficiency,
    ) -> Result<CostProfile> {
        let gpus_per_node = cluster.gpus_per_node();
        let entry = |scheme: Scheme| predicted(model, scheme, device, cluster, efficiency);
        let schemes = schemes(model, cluster)?;
        let under = |&kind: &CheckpointingKind| schemes.iter().map(move |scheme| scheme.with_checkpointing(kind));
        let entries = kinds.iter().flat_map(under).map(entry).collect::<Result<Vec<_>>>()?;
        let (fields, offloads) = (model.fields(), kinds.iter().any(|kind| kind.offloads()));
        CostProfile {
            name: format!("analytic-{}", device.name),
            source: format!(
                "predicted for {} layers of hidden size {} from the data sheet of {}, with the efficiencies of a measured \
                 device: docs/cost-model.md states their error",
                fields.num_hidden_layers, fields.hidden_size, device.name
            ),
            hardware: Hardware {
                device: device.name.into(),
                gpus_per_node,
                memory_bytes: device.memory_bytes,
                host_memory_bytes: offloads.then_some(device.host_memory_bytes),
                host_gigabytes_per_s: offloads.then_some(device.host_gb_per_s),
                links: Vec::new(),
            },
            model: Some(model.clone()),
            dtype: Some(device.dtype),
            attention: None,
            memory: Memory {
                reserved_bytes: memory::reserved_bytes(model, device),
                optimizer_bytes: memory::optimizer_bytes(model, device),
                token_multiple: TOKEN_MULTIPLE,
            },
            schemes: entries,
            ..CostProfile::empty()
        }
        .checked()
    }
}

/// The costs of one scheme.
fn predicted(
    model: &ModelShape,
    scheme: Scheme,
    device: &Device,
    cluster: &Cluster,
    efficiency: &Efficiency,
) -> Result<SchemeProfile> {
    let work = Work::of(model, scheme, device, cluster.gpus_per_node());
    let times = work.times(efficiency);
    let entry = SchemeProfile {
        scheme,
        context: (scheme.cp() > 1).then_some(ContextKind::Ulysses),
        quadratic_ms_per_token2: times.quadratic_ms_per_token2,
        linear_ms_per_token: times.linear_ms_per_token,
        fixed_ms: times.fixed.0,
        least_ms: times.least.0,
        forward_share: Recomputation::of(scheme.layer_plan()).forward_share(work::frozen_share(model)),
        resident_bytes: memory::resident_bytes(model, scheme, device, cluster)?,
        stage_optimizer_bytes: memory::stage_optimizer_bytes(model, scheme, device)?,
        activation_bytes_per_token: memory::activation_bytes(model, scheme, device)?,
        host_bytes_per_token: memory::host_bytes(model, scheme, device)?,
        stage_multipliers: stage_multipliers(model, scheme)?,
        stage_layers: None,
        fit: None,
    };
    if !scheme.layer_plan().offloads() {
        return Ok(entry);
    }
    let copies = HostCopies::of(&entry, &memory::copied_layers(model, scheme)?, device.host_gb_per_s);
    let longest = entry.longest_tokens(device.memory_bytes, memory::reserved_bytes(model, device));
    Ok(copies.added_to(entry, longest))
}

/// Tensor degrees that divide the query heads, with pipeline degrees that divide the layers or, without a pipeline,
/// with context degrees that divide a tensor rank's heads; on at most the cluster's ranks, powers of two except for the
/// stages.
fn schemes(model: &ModelShape, cluster: &Cluster) -> Result<Vec<Scheme>> {
    let fields = model.fields();
    let fits = |scheme: &Scheme| scheme.ranks() <= u64::from(cluster.gpus());
    let mut schemes = Vec::new();
    for tp in powers(MOST_TP).filter(|&tp| fields.num_attention_heads.is_multiple_of(tp.into())) {
        let stages = (1..=MOST_PP).filter(|&pp| fields.num_hidden_layers.is_multiple_of(pp.into()));
        for scheme in stages.map(|pp| Scheme::new(tp, 1, pp)) {
            schemes.push(scheme?);
        }
        let heads = fields.num_attention_heads / u64::from(tp);
        for scheme in
            powers(MOST_CP).skip(1).filter(|&cp| heads.is_multiple_of(cp.into())).map(|cp| Scheme::new(tp, cp, 1))
        {
            schemes.push(scheme?);
        }
    }
    schemes.retain(fits);
    Ok(schemes)
}

/// The powers of two up to a greatest one.
fn powers(most: u16) -> impl Iterator<Item = u16> {
    (0..16).map(|doublings| 1_u16 << doublings).take_while(move |&power| power <= most)
}

/// The cost of each stage relative to the mean; the last one computes the head in addition to its layers.
fn stage_multipliers(model: &ModelShape, scheme: Scheme) -> Result<Option<Vec<f64>>> {
    if scheme.pp() == 1 {
        return Ok(None);
    }
    let costs = LayerSplit::of(model).stage_costs(scheme)?;
    let mean = costs.iter().sum::<f64>() / count(costs.len());
    Ok(Some(costs.into_iter().map(|cost| cost / mean).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::preset;

    /// The layer plans that a profile derives from its kinds, against the same arithmetic for each plan by itself: of a
    /// model whose stages are even (pp2, pp4), or not (pp3).
    #[test]
    fn derived_layer_plans_are_the_predicted_ones() {
        let model = preset("llama-13b-a800").unwrap().model.unwrap();
        let (on, cluster) = (device("H100").unwrap(), Cluster::new(64, 8).unwrap());
        let efficiency = Efficiency::shipped(&on).unwrap();
        let mut uniform = CostProfile::analytic(&model, &cluster, &on, &CheckpointingKind::ALL, &efficiency).unwrap();
        for kind in CheckpointingKind::ALL {
            let uneven = Scheme::new(2, 1, 3).unwrap().with_checkpointing(kind);
            uniform.schemes.push(predicted(&model, uneven, &on, &cluster, &efficiency).unwrap());
        }
        let mixed = uniform.clone().with_layer_plans(3).unwrap();
        assert_eq!(mixed.schemes[..uniform.schemes.len()], uniform.schemes);
        let derived = &mixed.schemes[uniform.schemes.len()..];
        // Two times three of each of the degrees, and three times three or four with copies, where stages have the
        // layers for them.
        let degrees = uniform.schemes.len() / 5;
        assert!((degrees * 8..=degrees * 18).contains(&derived.len()), "{} of {degrees}", derived.len());
        let with_copies = derived.iter().filter(|entry| entry.scheme.layer_plan().offloads()).count();
        assert!(with_copies >= degrees * 3, "{with_copies} of {degrees}");
        let mut uneven = 0;
        for entry in derived {
            let direct = predicted(&model, entry.scheme, &on, &cluster, &efficiency).unwrap();
            let near = |one: f64, other: f64| (one - other).abs() <= 1e-9 * other.abs();
            // The forward's share, by which copies are covered, is that of matrix products in one of them alone.
            let [usual, _] = entry.scheme.layer_plan().kinds();
            let recomputes = entry.scheme.layer_plan().offloads() && usual != CheckpointingKind::None;
            let alike =
                |one: f64, other: f64| (one - other).abs() <= if recomputes { 0.05 } else { 1e-9 } * other.abs();
            let stages = 0..entry.scheme.stages();
            assert!(alike(entry.linear_ms_per_token, direct.linear_ms_per_token), "{}", entry.scheme);
            assert!(alike(entry.quadratic_ms_per_token2, direct.quadratic_ms_per_token2), "{}", entry.scheme);
            assert!(near(entry.fixed_ms, direct.fixed_ms), "{}", entry.scheme);
            for stage in stages.clone() {
                let bytes = |entry: &SchemeProfile| entry.activation_bytes_per_token.of(stage);
                assert!(near(bytes(entry), bytes(&direct)), "{}: {} {}", entry.scheme, bytes(entry), bytes(&direct));
            }
            let host = |entry: &SchemeProfile, stage| entry.host_bytes_per_token.as_ref().map(|host| host.of(stage));
            assert!(
                stages.into_iter().all(|stage| match (host(entry, stage), host(&direct, stage)) {
                    (Some(one), Some(other)) => near(one, other),
                    (one, other) => one == other,
                }),
                "{}",
                entry.scheme
            );
            assert_eq!(entry.resident_bytes, direct.resident_bytes);
            uneven += usize::from(entry.stage_multipliers != direct.stage_multipliers);
        }
        // Their stages have unequal shares of the second kind.
        assert!((1..derived.len() / 4).contains(&uneven), "{uneven} of {}", derived.len());
    }
}
