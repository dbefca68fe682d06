//! A profile for sharded gradients or parameters, from one without sharding.
//!
//! A sharded buffer has two parts in place of a whole stage: one for the buckets of even number and one for the others,
//! so that two successive buckets never share one. A tied embedding's parameters have a third one. Outgoing parameters
//! wait in the gradient buffer, of which sharding leaves less; the rest takes memory of its own. Sharded parameters do
//! not use that buffer, and need memory to permute a bucket in (`runtime/redistribute/parameter_gather.py`).

use crate::cost::PerStage;
use crate::cost::profile::CostProfile;
use crate::error::{ProfileError, Result};
use crate::spec::{Dtype, ModelPart, ModelShape, ParameterRow, Scheme, ShardingKind};

impl CostProfile {
    /// The same profile under another sharding: its schemes without stages, with two buckets in place of each sharded
    /// buffer. A profile of that sharding stays as it is.
    ///
    /// Refused with `profile_invalid` if the profile does not state its model, if every scheme has stages, or if the
    /// profile has another sharding already.
    pub fn with_sharding(self, kind: ShardingKind) -> Result<CostProfile> {
        self.on_each_device(|profile| profile.sharded(kind))
    }

    fn sharded(mut self, kind: ShardingKind) -> Result<CostProfile> {
        if self.sharding == kind {
            return Ok(self);
        }
        let invalid = |profile: &CostProfile, field: &str, value: String, limit: String| ProfileError::Value {
            profile: profile.name.clone(),
            field: field.into(),
            value,
            limit,
        };
        if !self.sharding.is_none() {
            let limit = format!("'none' in the profile that is to have {kind} sharded");
            return Err(invalid(&self, "sharding", self.sharding.to_string(), limit).into());
        }
        let model = self.travelling_model()?.clone();
        let (dtype, node) = (self.travelling_dtype(), u64::from(self.hardware.gpus_per_node));
        let known: Vec<String> = self.schemes.iter().map(|entry| entry.scheme.to_string()).collect();
        self.schemes.retain(|entry| entry.scheme.pp() == 1);
        self.strategies.iter_mut().for_each(|list| {
            list.strategies.retain(|strategy| strategy.schemes().iter().all(|scheme| scheme.pp() == 1));
        });
        self.strategies.retain(|list| !list.strategies.is_empty());
        if self.schemes.is_empty() {
            let limit = format!("a list with a scheme without stages, for sharded {kind}");
            return Err(invalid(&self, "schemes", known.join(" "), limit).into());
        }
        for entry in &mut self.schemes {
            let sizes = Sizes { dtype, node, tp: u64::from(entry.scheme.tp()) };
            let trained = Buckets::of(&model, entry.scheme, true);
            let frozen = Buckets::of(&model, entry.scheme, false);
            let bytes = entry.resident_bytes.of(0);
            let bytes = match kind {
                ShardingKind::Parameters => sizes.sharded_parameters(bytes, &trained, &frozen),
                _ => sizes.sharded_gradients(bytes, &trained, &frozen),
            };
            entry.resident_bytes = PerStage::each(vec![bytes]);
        }
        if kind == ShardingKind::Parameters {
            // Sharded parameters have a buffer of their own to permute frozen ones in.
            let permuted = Buckets::of(&model, self.schemes[0].scheme, false).unsplit * dtype.bytes();
            self.memory.reserved_bytes = self.memory.reserved_bytes.saturating_sub(permuted);
        }
        self.sharding = kind;
        self.checked()
    }

    /// Bytes by which sharding lowers a rank's parameters and gradients, for a scheme of this profile; none if the profile
    /// is sharded and does not state its model. Gradients count 4 bytes where parameters have 2, as a rank holds them, also
    /// where the scheme's figure came from a table with fewer.
    pub(crate) fn bytes_saved_by_sharding(&self, scheme: Scheme) -> Option<u64> {
        if self.sharding.is_none() {
            return Some(0);
        }
        let model = self.model.as_ref()?;
        let (dtype, node) = (self.travelling_dtype(), u64::from(self.hardware.gpus_per_node));
        let sizes = Sizes { dtype, node, tp: u64::from(scheme.tp()) };
        let [trained, frozen] = [true, false].map(|trained| Buckets::of(model, scheme, trained));
        let mut whole = trained.all() * (dtype.bytes() + dtype.wide_bytes()) + frozen.all() * dtype.bytes();
        let sharded = match self.sharding {
            ShardingKind::Parameters => {
                whole += sizes.overflow_of_whole(&trained, &frozen);
                sizes.sharded_parameters(whole, &trained, &frozen)
            }
            _ => sizes.sharded_gradients(whole, &trained, &frozen),
        };
        Some(whole.saturating_sub(sharded))
    }
}

/// The sizes that the bytes of a rank's buffers follow.
struct Sizes {
    dtype: Dtype,
    /// Ranks of a node.
    node: u64,
    tp: u64,
}

impl Sizes {
    /// Replaces the bytes of whole gradients in `resident` by those of two buckets, with the memory of outgoing parameters
    /// that no longer fit into the gradient buffer.
    fn sharded_gradients(&self, resident: u64, trained: &Buckets, frozen: &Buckets) -> u64 {
        let whole = trained.all() * self.dtype.wide_bytes();
        let sharded = trained.pair() * self.dtype.wide_bytes();
        let overflow = self.overflow(trained, frozen, sharded) - self.overflow(trained, frozen, whole);
        // Tables that count gradients in the model's type would otherwise lose more than they count.
        let least = (trained.all() + frozen.all()) * self.dtype.bytes() + sharded;
        resident.saturating_sub(whole - sharded).max(least) + overflow
    }

    /// Replaces the bytes of whole parameters and gradients in `resident` by those of two layer groups each. The trained and
    /// the frozen bucket of a layer group arrive together.
    fn sharded_parameters(&self, resident: u64, trained: &Buckets, frozen: &Buckets) -> u64 {
        let (narrow, wide) = (self.dtype.bytes(), self.dtype.wide_bytes());
        let both = trained.with(frozen);
        let held = both.parameter_parts() * narrow + trained.pair() * wide;
        let permuted = both.largest() * narrow;
        let whole = both.all() * narrow + trained.all() * wide + self.overflow_of_whole(trained, frozen);
        // Tables that count gradients in the model's type would otherwise lose more than they count.
        let rest = resident.saturating_sub(whole);
        rest + held + permuted + self.in_transfer(trained) + self.in_transfer(frozen)
    }

    /// Bytes of outgoing parameters, trained or frozen, that do not fit into a gradient buffer of `gradients` bytes.
    fn overflow(&self, trained: &Buckets, frozen: &Buckets, gradients: u64) -> u64 {
        self.in_transfer(trained).max(self.in_transfer(frozen)).saturating_sub(gradients)
    }

    /// The same without sharding, as analytic profiles count it (`cost/analytic/memory.rs`): a rank may send as much of a
    /// bucket as a rank of `<1>` holds.
    fn overflow_of_whole(&self, trained: &Buckets, frozen: &Buckets) -> u64 {
        let in_transfer = |kind: &Buckets| kind.all().min(kind.unsplit) + 2 * kind.unsplit / self.node;
        let most = in_transfer(trained).max(in_transfer(frozen)) * self.dtype.bytes();
        most.saturating_sub(trained.all() * self.dtype.wide_bytes())
    }

    /// Bytes of the parameters of one bucket that a rank sends: of its local shard, and to other nodes twice its rail's
    /// part of the bucket.
    fn in_transfer(&self, buckets: &Buckets) -> u64 {
        (buckets.largest() + 2 * (buckets.largest() * self.tp / self.node)) * self.dtype.bytes()
    }
}

/// Elements of each kind of bucket in the local shard of a rank without stages.
struct Buckets {
    embedding: u64,
    layer: u64,
    head: u64,
    layers: u64,
    /// Elements of the largest whole bucket.
    unsplit: u64,
    /// Whether the head uses the embedding too.
    is_tied: bool,
}

impl Buckets {
    fn of(model: &ModelShape, scheme: Scheme, trained: bool) -> Buckets {
        let fields = model.fields();
        // A tied embedding belongs to the first of its parts.
        let sum = |part: ModelPart, tp: u16| -> u64 {
            let rows =
                fields.parameters.iter().filter(|row| row.trained == trained && row.parts.first() == Some(&part));
            rows.map(|row| of_rank(row, tp)).sum()
        };
        let [embedding, layer, head] = [ModelPart::Embedding, ModelPart::Layer, ModelPart::Head]
            .map(|part| [scheme.tp(), 1].map(|tp| sum(part, tp)));
        Buckets {
            embedding: embedding[0],
            layer: layer[0],
            head: head[0],
            unsplit: embedding[1].max(layer[1]).max(head[1]),
            layers: fields.num_hidden_layers,
            is_tied: fields.parameters.iter().any(|row| row.parts.len() > 1),
        }
    }

    /// The elements of both, layer group by layer group.
    fn with(&self, other: &Buckets) -> Buckets {
        Buckets {
            embedding: self.embedding + other.embedding,
            layer: self.layer + other.layer,
            head: self.head + other.head,
            ..*self
        }
    }

    fn all(&self) -> u64 {
        self.embedding + self.layers * self.layer + self.head
    }

    fn largest(&self) -> u64 {
        self.embedding.max(self.layer).max(self.head)
    }

    /// Elements of the parts of a sharded parameter buffer.
    fn parameter_parts(&self) -> u64 {
        let turning = Buckets { embedding: if self.is_tied { 0 } else { self.embedding }, ..*self };
        turning.pair() + if self.is_tied { self.embedding } else { 0 }
    }

    /// The largest bucket of even number, and the largest of odd number. The embedding is bucket 0, the layers follow,
    /// and the head is the last.
    fn pair(&self) -> u64 {
        let mut largest = [self.embedding, self.layer];
        if self.layers >= 2 {
            largest[0] = largest[0].max(self.layer);
        }
        let place = usize::from(self.layers.is_multiple_of(2));
        largest[place] = largest[place].max(self.head);
        largest[0] + largest[1]
    }
}

/// Elements of a parameter on a tensor rank: a tensor rank holds whole units.
fn of_rank(row: &ParameterRow, tp: u16) -> u64 {
    row.units.div_ceil(tp.into()) * (row.rows / row.units * row.row_elements)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{Efficiency, device, preset};
    use crate::spec::{CheckpointingKind, Cluster};

    fn bytes(profile: &CostProfile, scheme: &str) -> u64 {
        profile.scheme(scheme.parse().unwrap()).unwrap().resident_bytes.of(0)
    }

    fn analytic() -> CostProfile {
        analytic_of(&preset("llama-32b-a800").unwrap().model.unwrap())
    }

    /// 32B of which the norms of the layers are trained.
    fn with_trained_norms() -> ModelShape {
        let mut fields = analytic().model.unwrap().fields().clone();
        fields.parameters.iter_mut().for_each(|row| row.trained = row.name.ends_with("layernorm.weight"));
        ModelShape::try_from(fields).unwrap()
    }

    fn analytic_of(model: &ModelShape) -> CostProfile {
        let (cluster, device) = (Cluster::new(64, 8).unwrap(), device("A100-80GB").unwrap());
        let kinds = [CheckpointingKind::None];
        CostProfile::analytic(model, &cluster, &device, &kinds, &Efficiency::shipped(&device).unwrap()).unwrap()
    }

    #[test]
    fn the_bytes_saved_by_sharding_are_those_that_the_schemes_lose() {
        let whole = analytic();
        // An analytic profile splits norms over tensor ranks, of which each holds them whole.
        let norms = 6 * 60 * 2 * 6_656;
        for (kind, whole, margin) in [
            (ShardingKind::Gradients, analytic(), 0),
            (ShardingKind::Parameters, analytic(), 0),
            (ShardingKind::Parameters, analytic_of(&with_trained_norms()), norms),
        ] {
            let sharded = whole.clone().with_sharding(kind).unwrap();
            for entry in &sharded.schemes {
                let before = whole.scheme(entry.scheme).unwrap().resident_bytes.of(0);
                let saved = sharded.bytes_saved_by_sharding(entry.scheme).unwrap();
                let lost = before - entry.resident_bytes.of(0);
                assert!(saved.abs_diff(lost) <= margin, "{} {kind}: {saved} and {lost}", entry.scheme);
            }
        }
        assert_eq!(whole.bytes_saved_by_sharding(whole.schemes[0].scheme), Some(0));
        // The shipped table counts gradients in 2 bytes.
        let table = preset("llama-32b-a800").unwrap().with_sharding(ShardingKind::Gradients).unwrap();
        let scheme = "<tp4>".parse().unwrap();
        let analytic = whole.with_sharding(ShardingKind::Gradients).unwrap();
        assert_eq!(table.bytes_saved_by_sharding(scheme), analytic.bytes_saved_by_sharding(scheme));
    }

    /// 32B: 60 layers of hidden size 6,656 and 52 heads, with a vocabulary of 32,000: embedding and head are smaller than a
    /// layer.
    #[test]
    fn gradients_of_two_buckets_stay() {
        let whole = analytic();
        let sharded = whole.clone().with_sharding(ShardingKind::Gradients).unwrap();
        assert_eq!(sharded.sharding, ShardingKind::Gradients);
        assert_eq!(sharded.schemes.len(), whole.schemes.iter().filter(|entry| entry.scheme.pp() == 1).count());
        let model = whole.model.as_ref().unwrap();
        let (hidden, vocabulary) = (model.fields().hidden_size, model.fields().vocab_size);
        for entry in sharded.schemes.iter().filter(|entry| 52 % entry.scheme.tp() == 0) {
            let saved = bytes(&whole, &entry.scheme.to_string()) - bytes(&sharded, &entry.scheme.to_string());
            let tp = u64::from(entry.scheme.tp());
            // Matrices are split evenly, norms are not split.
            let layer = model.layer_matrices() / tp + 2 * hidden;
            assert_eq!(saved, 4 * (58 * layer + 2 * vocabulary * hidden / tp + hidden));
        }
        assert_eq!(sharded.clone().with_sharding(ShardingKind::Gradients).unwrap(), sharded);
        assert_eq!(CostProfile::from_json(&sharded.to_json()).unwrap(), sharded);
    }

    /// Two layers of parameters and gradients, and in transfer a layer twice and two rails' parts of it.
    #[test]
    fn parameters_and_gradients_of_two_buckets_stay() {
        let whole = analytic();
        let sharded = whole.clone().with_sharding(ShardingKind::Parameters).unwrap();
        let model = sharded.model.as_ref().unwrap();
        for (scheme, tp) in [("<1>", 1), ("<tp4>", 4)] {
            let layer = model.layer_matrices() / tp + 2 * model.fields().hidden_size;
            let ends = 2 * model.fields().vocab_size * model.fields().hidden_size / tp + model.fields().hidden_size;
            let freed = 6 * (60 * layer + ends);
            let taken = 6 * 2 * layer + 2 * (2 * layer + 2 * (layer * tp / 8));
            assert_eq!(bytes(&whole, scheme) - bytes(&sharded, scheme), freed - taken, "{scheme}");
        }
        // A profile is sharded once.
        let error = sharded.with_sharding(ShardingKind::Gradients).unwrap_err();
        assert!(error.to_string().contains("'none'"), "{error}");
    }

    /// Frozen layers and ends, with trained norms of 2 x 6,656 elements in each layer, which no rank splits. Whole, a layer in
    /// transfer does not fit into the gradients.
    #[test]
    fn frozen_parameters_are_sharded_with_the_trained_ones_of_their_layer() {
        let model = with_trained_norms();
        let whole = analytic_of(&model);
        let sharded = whole.clone().with_sharding(ShardingKind::Parameters).unwrap();
        let (norms, matrices) = (2 * model.fields().hidden_size, model.layer_matrices());
        let ends = 2 * model.fields().vocab_size * model.fields().hidden_size + model.fields().hidden_size;
        let in_transfer = |bucket: u64| 2 * (bucket + 2 * (bucket / 8));
        let gradients = 4 * 60 * norms;
        let held = 2 * (60 * (norms + matrices) + ends) + gradients;
        assert_eq!(bytes(&whole, "<1>"), held + in_transfer(matrices) - gradients);
        // Two layers, of which one is permuted apart, the gradients of two layers' norms, and both in transfer.
        let after = 3 * 2 * (norms + matrices) + 2 * 4 * norms + in_transfer(norms) + in_transfer(matrices);
        assert_eq!(bytes(&sharded, "<1>"), after);
        // Under <tp8> none of the whole buffers is left either.
        let matrices = matrices / 8;
        let in_transfer = |bucket: u64| 2 * (bucket + 2 * bucket);
        let after = 3 * 2 * (norms + matrices) + 2 * 4 * norms + in_transfer(norms) + in_transfer(matrices);
        let counted = bytes(&sharded, "<tp8>");
        assert!((after..after + after / 100).contains(&counted), "{counted} and {after}");
        // The largest frozen bucket is permuted in a buffer that each scheme counts.
        assert_eq!(whole.memory.reserved_bytes - sharded.memory.reserved_bytes, 2 * model.layer_matrices());
    }

    /// The tables count gradients of two bytes.
    #[test]
    fn parameters_and_two_buckets_are_counted_at_least() {
        let sharded = preset("llama-32b-a800").unwrap().with_sharding(ShardingKind::Gradients).unwrap();
        let model = sharded.model.as_ref().unwrap();
        let layer = model.layer_matrices() / 4 + 2 * model.fields().hidden_size;
        let least = 2 * model.parameters() / 4 + 2 * 4 * layer;
        let counted = bytes(&sharded, "<tp4>");
        assert!((least..least + least / 1_000).contains(&counted), "{counted} and {least}");
    }

    #[test]
    fn profiles_that_cannot_be_sharded_are_refused() {
        let mut unnamed = preset("llama-32b-a800").unwrap();
        unnamed.model = None;
        assert_eq!(unnamed.with_sharding(ShardingKind::Gradients).unwrap_err().code(), "profile_invalid");
        let mut staged = preset("llama-32b-a800").unwrap();
        staged.schemes.retain(|entry| entry.scheme.pp() > 1);
        let error = staged.clone().with_sharding(ShardingKind::Gradients).unwrap_err();
        assert!(error.to_string().contains("without stages"), "{error}");
        // A document with both is refused too.
        staged.sharding = ShardingKind::Gradients;
        let error = CostProfile::from_json(&staged.to_json()).unwrap_err();
        assert!(error.to_string().contains("without stages"), "{error}");
    }

    #[test]
    fn successive_buckets_have_different_buffers() {
        let buckets =
            |embedding, layer, head, layers| Buckets { embedding, layer, head, layers, unsplit: 0, is_tied: false };
        // Buckets 0 to 3: the head shares a buffer with the first layer.
        assert_eq!(buckets(10, 3, 7, 2).pair(), 10 + 7);
        // Buckets 0 to 4: the head shares the embedding's.
        assert_eq!(buckets(10, 3, 7, 3).pair(), 10 + 3);
        assert_eq!(buckets(1, 3, 7, 1).pair(), 7 + 3);
        assert_eq!(buckets(1, 3, 2, 2).pair(), 3 + 3);
    }
}
