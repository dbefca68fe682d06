//! The work of a micro-batch, by arithmetic: operations, bytes, and a device's time for them at its peak.

use crate::cost::analytic::{Device, Efficiency};
use crate::cost::class_cost::MicroBatchCost;
use crate::cost::recomputation::{OPERATIONS, Recomputation};
use crate::spec::{CheckpointingKind, LayerPlan, ModelShape, Scheme};
use crate::units::{Millis, Tokens, count};

/// Kinds of work, each with its own efficiency.
pub(super) const KINDS: usize = 8;
/// Their names, in order.
pub(super) const NAMES: [&str; KINDS] = [
    "matrices",
    "narrow matrices",
    "exchanges in a node",
    "exchanges between nodes",
    "elementwise",
    "attention",
    "launches",
    "weights",
];

/// Milliseconds at peak, by kind of work, of one stage's forward and backward, on average over the stages.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    /// Milliseconds per squared token.
    pub(super) quadratic: [f64; KINDS],
    /// Milliseconds per token.
    pub(super) linear: [f64; KINDS],
    /// Milliseconds per micro-batch.
    pub(super) fixed: [f64; KINDS],
}

/// Indices of the kinds.
pub(super) const MATRICES: usize = 0;
pub(super) const NARROW: usize = 1;
const IN_NODE: usize = 2;
const BETWEEN_NODES: usize = 3;
const ELEMENTWISE: usize = 4;
pub(super) const ATTENTION: usize = 5;
pub(super) const LAYERS: usize = 6;
const WEIGHTS: usize = 7;

/// Hidden units of a rank at which narrow matrices count once.
const WIDE: f64 = 1024.0;

/// Factor to milliseconds from operations and 1e12 operations a second, or from bytes and 1e9 bytes a second.
const MS_PER_TERA: f64 = 1e-9;
const MS_PER_GIGA: f64 = 1e-6;

impl Work {
    /// The work of a model's scheme on nodes of `gpus_per_node` devices.
    ///
    /// A tensor group gathers and scatters the hidden states four times each way (Korthikanti et al. 2022, sequence
    /// parallelism); a context group exchanges queries, keys, values and outputs once each way (Ulysses, Jacobs et al.
    /// 2023), and each of its ranks has a share of the tokens.
    pub(super) fn of(model: &ModelShape, scheme: Scheme, device: &Device, gpus_per_node: u32) -> Work {
        let again = Recomputation::of(scheme.layer_plan());
        let fields = model.fields();
        let (tp, cp, stages) = (f64::from(scheme.tp()), f64::from(scheme.cp()), count(scheme.stages()));
        let layers = count(fields.num_hidden_layers) / stages;
        let hidden = count(fields.hidden_size);
        let width = count(device.dtype.bytes());
        let [of_matrices, of_attention] = OPERATIONS;
        let frozen = frozen_share(model);
        let head = if model.trains_vocabulary() { 0.0 } else { 1.0 };
        let unrepeated = Recomputation::of(LayerPlan::uniform(CheckpointingKind::None));
        let matrices = of_matrices * again.products(frozen) * layers * count(model.layer_matrices())
            + of_matrices * unrepeated.products(head) * count(model.vocabulary_parameters()) / stages;
        let at_peak = MS_PER_TERA / device.peak_tflops / (tp * cp);
        let mut work = Work::default();
        work.linear[MATRICES] = matrices * at_peak;
        work.linear[NARROW] = matrices * at_peak * narrowness(hidden / tp);
        let sent = again.exchanges * layers * width / cp;
        work.exchange(8.0 * sent * hidden, tp, tp, device, gpus_per_node);
        // A key/value head goes to each of the ranks whose queries it serves.
        let keys = count(fields.num_key_value_heads * fields.head_dim).max(tp * cp * count(fields.head_dim));
        let attended = 2.0 * count(model.query_width()) + 2.0 * keys;
        work.exchange(2.0 * sent * attended / tp, cp, tp * cp, device, gpus_per_node);
        // Bytes read and written once each, forward and backward, of about 12 values for each hidden unit and 5 of the
        // MLP.
        let touched =
            layers * (12.0 * hidden + 5.0 * count(fields.intermediate_size)) * width * 4.0 * again.elementwise;
        work.linear[ELEMENTWISE] = touched * MS_PER_GIGA / device.memory_gb_per_s / (tp * cp);
        work.quadratic[ATTENTION] = of_attention * again.attention * layers * count(model.query_width()) * at_peak;
        work.fixed[LAYERS] = layers * again.matrices;
        let weights = (3.0 - frozen) * layers * count(model.layer_matrices()) * width;
        work.fixed[WEIGHTS] = weights * MS_PER_GIGA / device.memory_gb_per_s / tp;
        work
    }

    /// Adds an exchange in which each of `degree` ranks, among `stage_group` consecutive ones, sends `bytes` bytes per
    /// token to all others.
    fn exchange(&mut self, bytes: f64, degree: f64, stage_group: f64, device: &Device, gpus_per_node: u32) {
        // A single rank sends nothing, wherever the stage group's other ranks are.
        if degree <= 1.0 {
            return;
        }
        let nodes = stage_group / f64::from(gpus_per_node).min(stage_group);
        let node_rate = device.network_gb_per_s * f64::from(gpus_per_node);
        self.linear[IN_NODE] += bytes * (degree - 1.0) / degree * MS_PER_GIGA / device.link_gb_per_s;
        self.linear[BETWEEN_NODES] += bytes * (1.0 - 1.0 / nodes) * MS_PER_GIGA / node_rate;
    }

    /// Milliseconds at peak of the counted operations: matrix products, and attention's, of sequences of these lengths.
    pub(super) fn operations(&self, lengths: &[Tokens]) -> f64 {
        let of_sequence = |tokens: &Tokens| {
            let tokens = tokens.as_f64();
            (self.quadratic[ATTENTION] * tokens + self.linear[MATRICES]) * tokens
        };
        lengths.iter().map(of_sequence).sum()
    }

    /// The times of a micro-batch at these efficiencies.
    pub(super) fn times(&self, efficiency: &Efficiency) -> MicroBatchCost {
        let sum = |part: &[f64; KINDS]| part.iter().zip(efficiency.times_peak).map(|(ms, times)| ms * times).sum();
        MicroBatchCost {
            quadratic_ms_per_token2: sum(&self.quadratic),
            linear_ms_per_token: sum(&self.linear),
            fixed: Millis(sum(&self.fixed)),
            least: Millis(efficiency.least_ms_per_layer * self.fixed[LAYERS]),
        }
    }

    /// The time of one sequence, by kind.
    pub(super) fn alone(&self, tokens: f64) -> [f64; KINDS] {
        let mut ms = self.fixed;
        for (kind, ms) in ms.iter_mut().enumerate() {
            *ms += (self.quadratic[kind] * tokens + self.linear[kind]) * tokens;
        }
        ms
    }
}

/// The share of frozen parameters among those of a layer's matrices.
pub(super) fn frozen_share(model: &ModelShape) -> f64 {
    1.0 - count(model.trained_layer_matrices()) / count(model.layer_matrices())
}

/// The multiple by which narrow matrices count, on a rank with `width` hidden units.
///
/// Of the powers 1/3, 1/2, 1, 2 and 3 the root predicts each shipped table best from the others: `docs/log.md`.
pub(super) fn narrowness(width: f64) -> f64 {
    (WIDE / width).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::analytic::device;
    use crate::cost::preset;

    /// 32B: 60 layers, hidden states of 6,656 in two bytes, over a link of 200 GB/s and nodes of 8 times 25 GB/s.
    #[test]
    fn only_groups_exchange() {
        let model = preset("llama-32b-a800").unwrap().model.unwrap();
        let of = |text: &str| Work::of(&model, text.parse().unwrap(), &device("A800").unwrap(), 8).linear;
        // Four gathers and four scatters; each token's queries, keys, values and outputs there and back.
        let (tensor, context) = (8.0 * 60.0 * 2.0 * 6_656.0 / 200e6, 2.0 * 60.0 * 2.0 * 4.0 * 6_656.0 / 200e6);
        for (scheme, inside, between) in [
            ("<1>", 0.0, 0.0),
            ("<tp4>", tensor * 0.75, 0.0),
            ("<tp16>", tensor * 15.0 / 16.0, tensor * 0.5),
            ("<cp2>", context / 2.0 * 0.5, 0.0),
            ("<cp16>", context / 16.0 * 15.0 / 16.0, context / 16.0 * 0.5),
            (
                "<tp16,cp2>",
                tensor / 2.0 * 15.0 / 16.0 + context / 32.0 * 0.5,
                tensor / 2.0 * 0.5 + context / 32.0 * 0.75,
            ),
        ] {
            let linear = of(scheme);
            for (found, expected) in [(linear[IN_NODE], inside), (linear[BETWEEN_NODES], between)] {
                assert!((found - expected).abs() <= 1e-12 * expected, "{scheme}: {found}, {expected}");
            }
        }
    }

    #[test]
    fn wider_matrices_count_less() {
        for (width, expected) in [(256.0, 2.0), (1_024.0, 1.0), (4_096.0, 0.5)] {
            assert!((narrowness(width) - expected).abs() < 1e-15, "{width}");
        }
    }
}
