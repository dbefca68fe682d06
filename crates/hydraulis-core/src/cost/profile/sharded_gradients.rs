//! A profile with sharded gradients, from one with whole gradients.
//!
//! Under sharded gradients a rank holds two buffers in place of the gradients of its whole stage: one for the buckets of
//! even number and one for the others, so that two successive buckets never share one. Gathered parameters wait in
//! these buffers, so less of them fits; what does not takes memory of its own
//! (`runtime/redistribute/parameter_gather.py`).

use crate::cost::PerStage;
use crate::cost::profile::{CostProfile, SchemeProfile};
use crate::error::{ProfileError, Result};
use crate::spec::{Dtype, GradientKind, ModelPart, ModelShape, ParameterRow, Scheme};

impl CostProfile {
    /// The same profile for sharded gradients: its schemes without stages, with two buckets in place of the gradient
    /// buffer. A profile with sharded gradients stays as it is.
    ///
    /// Refused with `link_model` if the profile does not state its model, with `profile_value` if every scheme has
    /// stages.
    pub fn with_sharded_gradients(mut self) -> Result<CostProfile> {
        if !self.gradients.is_whole() {
            return Ok(self);
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
            let limit = "a list with a scheme without stages, for sharded gradients".into();
            let value = known.join(" ");
            return Err(ProfileError::Value { profile: self.name, field: "schemes".into(), value, limit }.into());
        }
        for entry in &mut self.schemes {
            shard(entry, &model, dtype, node);
        }
        self.gradients = GradientKind::Sharded;
        self.checked()
    }
}

/// Replaces the bytes of whole gradients by those of two buckets, with the memory of gathered parameters that no longer
/// fit into the gradient buffer.
fn shard(entry: &mut SchemeProfile, model: &ModelShape, dtype: Dtype, node: u64) {
    let trained = Buckets::of(model, entry.scheme, true);
    let frozen = Buckets::of(model, entry.scheme, false);
    let whole = trained.all() * dtype.wide_bytes();
    let sharded = trained.pair() * dtype.wide_bytes();
    // A rank sends a bucket of its local shard, and to other nodes twice its rail's part of the bucket.
    let largest = |buckets: &Buckets| buckets.largest() + 2 * (buckets.largest() * u64::from(entry.scheme.tp()) / node);
    let in_transfer = largest(&trained).max(largest(&frozen)) * dtype.bytes();
    let overflow = in_transfer.saturating_sub(sharded) - in_transfer.saturating_sub(whole);
    // Tables that count gradients in the model's type would otherwise lose more than they count.
    let least = (trained.all() + frozen.all()) * dtype.bytes() + sharded;
    let bytes = entry.resident_bytes.of(0).saturating_sub(whole - sharded).max(least) + overflow;
    entry.resident_bytes = PerStage::each(vec![bytes]);
}

/// Elements of each kind of bucket in the local shard of a rank without stages.
struct Buckets {
    embedding: u64,
    layer: u64,
    head: u64,
    layers: u64,
}

impl Buckets {
    fn of(model: &ModelShape, scheme: Scheme, trained: bool) -> Buckets {
        let fields = model.fields();
        // A tied embedding belongs to the first of its parts.
        let sum = |part: ModelPart| {
            let rows =
                fields.parameters.iter().filter(|row| row.trained == trained && row.parts.first() == Some(&part));
            rows.map(|row| of_rank(row, scheme.tp())).sum()
        };
        Buckets {
            embedding: sum(ModelPart::Embedding),
            layer: sum(ModelPart::Layer),
            head: sum(ModelPart::Head),
            layers: fields.num_hidden_layers,
        }
    }

    fn all(&self) -> u64 {
        self.embedding + self.layers * self.layer + self.head
    }

    fn largest(&self) -> u64 {
        self.embedding.max(self.layer).max(self.head)
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

    /// 32B: 60 layers of hidden size 6,656 and 52 heads, with a vocabulary of 32,000: embedding and head are smaller than a
    /// layer.
    #[test]
    fn gradients_of_two_buckets_stay() {
        let model = preset("llama-32b-a800").unwrap().model.unwrap();
        let (cluster, device) = (Cluster::new(64, 8).unwrap(), device("A100-80GB").unwrap());
        let kinds = [CheckpointingKind::None];
        let whole = CostProfile::analytic(&model, &cluster, &device, &kinds, &Efficiency::shipped().unwrap()).unwrap();
        let sharded = whole.clone().with_sharded_gradients().unwrap();
        assert_eq!(sharded.gradients, GradientKind::Sharded);
        assert_eq!(sharded.schemes.len(), whole.schemes.iter().filter(|entry| entry.scheme.pp() == 1).count());
        let (hidden, vocabulary) = (model.fields().hidden_size, model.fields().vocab_size);
        for entry in sharded.schemes.iter().filter(|entry| 52 % entry.scheme.tp() == 0) {
            let saved = bytes(&whole, &entry.scheme.to_string()) - bytes(&sharded, &entry.scheme.to_string());
            let tp = u64::from(entry.scheme.tp());
            // Matrices are split evenly, norms are not split.
            let layer = model.layer_matrices() / tp + 2 * hidden;
            assert_eq!(saved, 4 * (58 * layer + 2 * vocabulary * hidden / tp + hidden));
        }
        assert_eq!(sharded.clone().with_sharded_gradients().unwrap(), sharded);
        assert_eq!(CostProfile::from_json(&sharded.to_json()).unwrap(), sharded);
    }

    /// The tables count gradients of two bytes.
    #[test]
    fn parameters_and_two_buckets_are_counted_at_least() {
        let sharded = preset("llama-32b-a800").unwrap().with_sharded_gradients().unwrap();
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
        assert_eq!(unnamed.with_sharded_gradients().unwrap_err().code(), "profile_invalid");
        let mut staged = preset("llama-32b-a800").unwrap();
        staged.schemes.retain(|entry| entry.scheme.pp() > 1);
        let error = staged.clone().with_sharded_gradients().unwrap_err();
        assert!(error.to_string().contains("without stages"), "{error}");
        // A document with both is refused too.
        staged.gradients = GradientKind::Sharded;
        let error = CostProfile::from_json(&staged.to_json()).unwrap_err();
        assert!(error.to_string().contains("without stages"), "{error}");
    }

    #[test]
    fn successive_buckets_have_different_buffers() {
        let buckets = |embedding, layer, head, layers| Buckets { embedding, layer, head, layers };
        // Buckets 0 to 3: the head shares a buffer with the first layer.
        assert_eq!(buckets(10, 3, 7, 2).pair(), 10 + 7);
        // Buckets 0 to 4: the head shares the embedding's.
        assert_eq!(buckets(10, 3, 7, 3).pair(), 10 + 3);
        assert_eq!(buckets(1, 3, 7, 1).pair(), 7 + 3);
        assert_eq!(buckets(1, 3, 2, 2).pair(), 3 + 3);
    }
}
