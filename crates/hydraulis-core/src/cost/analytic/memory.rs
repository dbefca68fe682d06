//! Bytes of a model's stages, by counting the runtime's buffers and activations.

use crate::cost::PerStage;
use crate::cost::analytic::Device;
use crate::error::Result;
use crate::spec::{CheckpointingKind, Cluster, LayerSplit, ModelShape, Scheme};
use crate::units::count;

/// Buckets in flight: two buckets being summed, and of the buckets relayed between nodes of 8 three quarters.
const STAGING: u64 = 3;
/// Master parameters, their gradients, and two moments.
const OF_TRAINED: u64 = 4;
/// Share of a device's memory for its driver, libraries and a fragmented allocator.
const MARGIN: f64 = 0.1;

/// Bytes of a device in use under every scheme: staging buffers, each of the largest bucket, and the margin. Frozen
/// parameters have one staging buffer, in the model's type.
pub(super) fn reserved_bytes(model: &ModelShape, device: &Device) -> u64 {
    STAGING * Parts::trained(model).largest_bucket() * device.dtype.wide_bytes()
        + Parts::frozen(model).largest_bucket() * device.dtype.bytes()
        + crate::units::whole(MARGIN * count(device.memory_bytes))
}

/// Bytes of the whole optimizer state. The owners of frozen parameters hold these alone, in the model's type.
pub(super) fn optimizer_bytes(model: &ModelShape, device: &Device) -> u64 {
    owned_bytes(model.parameters(), model.trained_parameters(), device)
}

fn owned_bytes(all: u64, trained: u64, device: &Device) -> u64 {
    OF_TRAINED * trained * device.dtype.wide_bytes() + (all - trained) * device.dtype.bytes()
}

/// Bytes of the optimizer state of each stage's parameters, tied embeddings with the first stage; none for a single
/// stage, which has all of it.
pub(super) fn stage_optimizer_bytes(model: &ModelShape, scheme: Scheme, device: &Device) -> Result<Option<Vec<u64>>> {
    if scheme.pp() == 1 {
        return Ok(None);
    }
    let owned = |parts: Parts| -> Result<Vec<u64>> {
        let mut stages = stage_parameters(model, scheme, parts)?;
        if let (Some(last), true) = (stages.last_mut(), model.is_tied()) {
            *last -= parts.vocabulary;
        }
        Ok(stages)
    };
    let stages = owned(Parts::all(model))?.into_iter().zip(owned(Parts::trained(model))?);
    Ok(Some(stages.map(|(all, trained)| owned_bytes(all, trained, device)).collect()))
}

/// Bytes of parameters and gradients, by stage: the buffers of the largest stage on every rank; on the last stage also
/// the gradient of the head between the loss and its backward; and parameters in transfer for which the gradient buffer
/// leaves no room.
pub(super) fn resident_bytes(
    model: &ModelShape,
    scheme: Scheme,
    device: &Device,
    cluster: &Cluster,
) -> Result<PerStage<u64>> {
    let (bytes, wide) = (device.dtype.bytes(), device.dtype.wide_bytes());
    let is_last = |stage: u16| stage + 1 == scheme.pp();
    let largest = |parts: Parts| -> Result<u64> {
        Ok(stage_parameters(model, scheme, parts)?.into_iter().max().unwrap_or_default())
    };
    let (all, trained) = (largest(Parts::all(model))?, largest(Parts::trained(model))?);
    let of_rank = |stage: u64| stage.div_ceil(scheme.tp().into());
    let overflow = overflow(model, device, cluster, [all, trained].map(of_rank));
    let of_stage = |stage: u16| {
        let head = if is_last(stage) { Parts::trained(model).vocabulary * wide } else { 0 };
        (all * bytes + trained * wide + head).div_ceil(scheme.tp().into()) + overflow
    };
    Ok(PerStage::each((0..scheme.pp()).map(of_stage).collect()))
}

/// Numbers of parameters in the parts of a model.
#[derive(Clone, Copy)]
struct Parts {
    layer: u64,
    vocabulary: u64,
    norm: u64,
}

impl Parts {
    fn all(model: &ModelShape) -> Parts {
        Parts {
            layer: model.layer_parameters(),
            vocabulary: model.vocabulary_parameters(),
            norm: model.fields().hidden_size,
        }
    }

    fn trained(model: &ModelShape) -> Parts {
        let outside = u64::from(model.trains_vocabulary());
        let all = Parts::all(model);
        Parts {
            layer: model.trained_layer_parameters(),
            vocabulary: outside * all.vocabulary,
            norm: outside * all.norm,
        }
    }

    fn frozen(model: &ModelShape) -> Parts {
        let (all, trained) = (Parts::all(model), Parts::trained(model));
        Parts {
            layer: all.layer - trained.layer,
            vocabulary: all.vocabulary - trained.vocabulary,
            norm: all.norm - trained.norm,
        }
    }

    fn largest_bucket(self) -> u64 {
        self.layer.max(self.vocabulary)
    }
}

/// Parameters that each stage holds.
fn stage_parameters(model: &ModelShape, scheme: Scheme, parts: Parts) -> Result<Vec<u64>> {
    let parameters = |(stage, layers): (u16, u64)| {
        let (first, last) = (stage == 0, stage + 1 == scheme.pp());
        let vocabularies = u64::from(first) + u64::from(last) - u64::from(first && last && model.is_tied());
        let norm = if last { parts.norm } else { 0 };
        layers * parts.layer + vocabularies * parts.vocabulary + norm
    };
    Ok(stage_layers(model, scheme)?.into_iter().map(parameters).collect())
}

/// Bytes of a bucket's parameters in transfer from a rank with `resident` parameters, all and trained ones, beyond the
/// gradient buffer: it sends no more than one of the two, and between nodes sends and relays the optimizer shards of its
/// rail (`runtime/redistribute/parameter_gather.py`).
fn overflow(model: &ModelShape, device: &Device, cluster: &Cluster, resident: [u64; 2]) -> u64 {
    let node = u64::from(cluster.gpus_per_node());
    let [all, trained] = resident;
    let in_transfer = |parts: Parts, resident: u64| {
        let bucket = parts.largest_bucket();
        let between = if u64::from(cluster.gpus()) > node { 2 * bucket / node } else { 0 };
        resident.min(bucket) + between
    };
    let most = in_transfer(Parts::trained(model), trained).max(in_transfer(Parts::frozen(model), all - trained));
    (most * device.dtype.bytes()).saturating_sub(trained * device.dtype.wide_bytes())
}

/// Bytes of activations per token of a micro-batch, by stage: stage `j` of `p` holds `p - j` micro-batches at once,
/// each of its own layers, and in a backward the recomputed activations of one layer of one of them. Of the layers that
/// offload, it holds two: one that computes and one in a copy. The input of a later stage's first
/// layer stays on the device. Context ranks share the tokens.
pub(super) fn activation_bytes(model: &ModelShape, scheme: Scheme, device: &Device) -> Result<PerStage<f64>> {
    let (tp, plan, split) = (count(scheme.tp()), scheme.layer_plan(), LayerSplit::of(model));
    let layer = |kind: CheckpointingKind| layer_bytes(model, scheme.tp(), kind, device);
    let hidden = count(model.fields().hidden_size);
    // Two activations of the last norm, and the loss's gradient for all tokens of the group.
    let head = hidden * (tp * count(device.dtype.bytes()) + 2.0 * count(device.dtype.wide_bytes()));
    // Its backward begins from the output that a stage has sent.
    let output = hidden * count(device.dtype.bytes());
    let of_stage = |stage: u16| {
        let (layers, in_flight) = (split.stage(scheme, stage)?, scheme.in_flight(stage));
        let others = if in_flight == 1 { head } else { f64::from(in_flight) * output };
        let received = stage > 0 && plan.offloads_first(&layers);
        let input = if received { f64::from(in_flight) * output } else { 0.0 };
        let [_, other] = plan.kinds();
        let offloading = plan.offloading_in(layers.clone(), stage == 0);
        let passing = f64::from((offloading * u32::from(in_flight)).min(2)) * layer(other.on_device()) + input;
        let kinds = layers.map(|layer| plan.of_layer(layer));
        let saved: f64 = kinds.clone().filter(|kind| !kind.offloads()).map(layer).sum();
        let most = kinds.map(CheckpointingKind::on_device).max().unwrap_or(CheckpointingKind::None);
        let again = layer(CheckpointingKind::None) - layer(most);
        Ok((f64::from(in_flight) * saved + again + passing + others) / count(scheme.stage_group_ranks()))
    };
    (0..scheme.pp()).map(of_stage).collect::<Result<_>>().map(PerStage::each)
}

/// Bytes of host memory per token of a micro-batch, by stage: those that the layers that are copied would save; none if
/// no layer offloads.
pub(super) fn host_bytes(model: &ModelShape, scheme: Scheme, device: &Device) -> Result<Option<PerStage<f64>>> {
    if !scheme.layer_plan().offloads() {
        return Ok(None);
    }
    let [_, other] = scheme.layer_plan().kinds();
    let saved = layer_bytes(model, scheme.tp(), other.on_device(), device) / count(scheme.stage_group_ranks());
    let of_stage = |(layers, stage): (u32, u16)| f64::from(layers) * f64::from(scheme.in_flight(stage)) * saved;
    let layers = copied_layers(model, scheme)?;
    Ok(Some(PerStage::each(layers.into_iter().zip(0..).map(of_stage).collect())))
}

/// Number of layers of each stage that are copied.
pub(super) fn copied_layers(model: &ModelShape, scheme: Scheme) -> Result<Vec<u32>> {
    let (plan, split) = (scheme.layer_plan(), LayerSplit::of(model));
    let of_stage = |stage| Ok(plan.copied_in(split.stage(scheme, stage)?, stage == 0, stage + 1 == scheme.pp()));
    (0..scheme.pp()).map(of_stage).collect()
}

/// The number of each stage, and its number of layers.
fn stage_layers(model: &ModelShape, scheme: Scheme) -> Result<Vec<(u16, u64)>> {
    let split = LayerSplit::of(model);
    let of_stage = |stage| {
        let layers = split.stage(scheme, stage)?;
        Ok((stage, u64::from(layers.end - layers.start)))
    };
    (0..scheme.pp()).map(of_stage).collect()
}

/// Bytes per token that the `tp` tensor ranks of one layer of this kind together save for backward, as
/// `tests/profile/test_analytic.py` counts them.
fn layer_bytes(model: &ModelShape, tp: u16, kind: CheckpointingKind, device: &Device) -> f64 {
    let fields = model.fields();
    let (bytes, wide) = (device.dtype.bytes(), device.dtype.wide_bytes());
    let (hidden, heads) = (fields.hidden_size, model.query_width() + model.key_width());
    count(match kind {
        // Norms compute in at least 32 bits and save one number each, attention one for each head. The inputs of both
        // groups of matrices are gathered: each tensor rank saves them for all tokens. Of the MLP, gate and up are saved.
        CheckpointingKind::None | CheckpointingKind::Offload => {
            hidden * (2 * bytes * u64::from(tp) + 4 * wide)
                + 2 * bytes * fields.intermediate_size
                + 2 * bytes * heads
                + wide * fields.num_attention_heads
                + 2 * wide
        }
        CheckpointingKind::Selective => {
            bytes * (hidden * (1 + u64::from(tp)) + 2 * fields.intermediate_size + 3 * heads)
                + wide * fields.num_attention_heads
        }
        CheckpointingKind::Full | CheckpointingKind::FullOffload => bytes * hidden,
    })
}
