//! A cost profile without hardware: the work by arithmetic, the device by its data sheet, efficiencies from measured tables.
//!
//! It serves to plan before there is a cluster, and to compare devices. A measured profile is better: `docs/cost-model.md`
//! says how far off each shipped table is predicted from the others.

mod device;
mod efficiency;
mod memory;
mod work;

pub use device::{DEVICES, Device, device};
pub use efficiency::Efficiency;

use work::Work;

use crate::cost::profile::{Hardware, Memory, SchemeProfile};
use crate::cost::{CostProfile, PRESETS, preset};
use crate::error::Result;
use crate::spec::{CheckpointingKind, Cluster, LayerSplit, ModelShape, Scheme};
use crate::units::count;

/// Wider tensor parallelism than two nodes of 8 was measured by nobody here.
const MOST_TP: u16 = 16;
/// More stages than that are beyond the tables too.
const MOST_PP: u16 = 16;
/// Caps are multiples of it, as in the tables.
const TOKEN_MULTIPLE: u64 = 128;

impl Efficiency {
    /// What the shipped profiles teach.
    pub fn shipped() -> Result<Efficiency> {
        let profiles: Vec<CostProfile> = PRESETS.iter().map(|(name, _)| preset(name)).collect::<Result<_>>()?;
        Efficiency::learnt(&profiles)
    }
}

impl CostProfile {
    /// Predicts the profile of a model on a device, for all schemes that divide the model and fit the cluster, without
    /// context parallelism, whose communication no table tells.
    pub fn analytic(
        model: &ModelShape,
        cluster: Cluster,
        device: &Device,
        checkpointing: CheckpointingKind,
        efficiency: &Efficiency,
    ) -> Result<CostProfile> {
        let nodes = cluster.gpus_per_node();
        let schemes = schemes(model, cluster)?;
        let entry = |&scheme: &Scheme| {
            let work = Work::of(model, scheme, device, nodes, checkpointing);
            let [quadratic, linear, fixed] = work.coefficients(&efficiency.times_peak);
            Ok(SchemeProfile {
                scheme,
                context: None,
                quadratic_ms_per_token2: quadratic,
                linear_ms_per_token: linear,
                fixed_ms: fixed,
                held_bytes: memory::held_bytes(model, scheme, device)?,
                activation_bytes_per_token: memory::activation_bytes(model, scheme, device, checkpointing)?,
                stage_multipliers: stage_multipliers(model, scheme)?,
                stage_layers: None,
                fit: None,
            })
        };
        let fields = model.fields();
        CostProfile {
            name: format!("analytic-{}", device.name),
            source: format!(
                "predicted for {} layers of hidden size {} from the data sheet of {}, with efficiencies learnt from measured \
                 profiles: docs/cost-model.md states their error",
                fields.num_hidden_layers, fields.hidden_size, device.name
            ),
            hardware: Hardware {
                device: device.name.into(),
                gpus_per_node: nodes,
                memory_bytes: device.memory_bytes,
                links: Vec::new(),
            },
            model: Some(model.clone()),
            dtype: Some(device.dtype),
            checkpointing,
            memory: Memory {
                reserved_bytes: memory::reserved_bytes(model, device),
                home_bytes: memory::home_bytes(model, device),
                token_multiple: TOKEN_MULTIPLE,
            },
            schemes: schemes.iter().map(entry).collect::<Result<_>>()?,
            ..CostProfile::empty()
        }
        .checked()
    }
}

/// Tensor degrees that divide the query heads and pipeline degrees that divide the layers, on no more ranks than there are.
fn schemes(model: &ModelShape, cluster: Cluster) -> Result<Vec<Scheme>> {
    let mut schemes = Vec::new();
    for tp in (0..16).map(|doublings| 1_u16 << doublings).take_while(|&tp| tp <= MOST_TP) {
        for pp in 1..=MOST_PP {
            let divides = model.fields().num_attention_heads.is_multiple_of(tp.into())
                && model.fields().num_hidden_layers.is_multiple_of(pp.into());
            if divides && u32::from(tp) * u32::from(pp) <= cluster.gpus() {
                schemes.push(Scheme::new(tp, 1, pp)?);
            }
        }
    }
    Ok(schemes)
}

/// The cost of each stage to the mean; the last one computes the head beside its layers.
fn stage_multipliers(model: &ModelShape, scheme: Scheme) -> Result<Option<Vec<f64>>> {
    if scheme.pp() == 1 {
        return Ok(None);
    }
    let costs = LayerSplit::of(model).stage_costs(scheme)?;
    let mean = costs.iter().sum::<f64>() / count(costs.len());
    Ok(Some(costs.into_iter().map(|cost| cost / mean).collect()))
}
