//! The models behind the shipped profiles, as the core's layout sees them.

use hydraulis_core::layout::{Parameter, ParameterTable};
use hydraulis_core::spec::LayerSplit;

use crate::error::{Error, Result};

/// A Llama-type decoder: attention without shared heads, three matrices of a gated feed-forward, two norms in each
/// layer and one at the end, embedding and head apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelShape {
    /// Decoder layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Width of the feed-forward.
    pub feed_forward: u64,
    /// Rows of the embedding and of the head.
    pub vocabulary: u64,
}

/// What the sources of the profiles say was measured (lhy101/Hydraulis at 4489487).
const SHAPES: [(&str, ModelShape); 4] = [
    ("llama-7b-a800", LLAMA_7B),
    ("llama-13b-a800", ModelShape { layers: 40, hidden: 5_120, feed_forward: 13_824, vocabulary: 30_592 }),
    ("llama-32b-a800", ModelShape { layers: 60, hidden: 6_656, feed_forward: 17_920, vocabulary: 30_592 }),
    ("llama-7b-a100-40g", LLAMA_7B),
];
const LLAMA_7B: ModelShape = ModelShape { layers: 32, hidden: 4_096, feed_forward: 11_008, vocabulary: 30_592 };

impl ModelShape {
    /// The model that a profile of this name measured.
    pub fn of_profile(name: &str) -> Result<ModelShape> {
        let found = SHAPES.iter().find(|(known, _)| *known == name);
        let known = || SHAPES.map(|(known, _)| known).join(" ");
        Ok(found.ok_or_else(|| Error::ModelUnknown { profile: name.into(), known: known() })?.1)
    }

    /// Its parameters.
    pub fn table(&self) -> Result<ParameterTable> {
        let mut parameters = vec![entry("embedding", self.vocabulary, self.hidden, true, 0)];
        for block in 1..=self.layers {
            parameters.extend(self.layer(block));
        }
        let head = self.layers + 1;
        parameters.push(entry("norm", self.hidden, 1, false, head));
        parameters.push(entry("head", self.vocabulary, self.hidden, true, head));
        // What was measured had even stages.
        Ok(ParameterTable::new(parameters, LayerSplit::even(self.layers))?)
    }

    /// Matrices with the dim in front that tensor parallelism splits: heads, or feed-forward width.
    fn layer(&self, block: u32) -> Vec<Parameter> {
        let (hidden, wide) = (self.hidden, self.feed_forward);
        let attention = ["query", "key", "value", "output"].map(|name| entry(name, hidden, hidden, true, block));
        let feed_forward = ["gate", "up", "down"].map(|name| entry(name, wide, hidden, true, block));
        let norms = ["attention_norm", "feed_forward_norm"].map(|name| entry(name, hidden, 1, false, block));
        attention.into_iter().chain(feed_forward).chain(norms).collect()
    }
}

fn entry(name: &str, rows: u64, row_elements: u64, split: bool, block: u32) -> Parameter {
    let units = if split { rows } else { 1 };
    Parameter { name: name.into(), rows, row_elements, units, blocks: vec![block] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hydraulis_core::cost::PRESETS;

    #[test]
    fn every_preset_has_its_model() {
        for (name, _) in PRESETS {
            assert!(ModelShape::of_profile(name).is_ok(), "{name}");
        }
        assert_eq!(ModelShape::of_profile("measured").unwrap_err().code(), "model_unknown");
    }

    #[test]
    fn models_have_the_parameters_of_their_names() {
        for (name, billions) in [("llama-7b-a800", 6.73), ("llama-13b-a800", 13.0), ("llama-32b-a800", 32.5)] {
            let table = ModelShape::of_profile(name).unwrap().table().unwrap();
            let elements: u64 = table.parameters().iter().map(Parameter::elements).sum();
            let stated = hydraulis_core::Tokens(elements).as_f64() / 1e9;
            assert!((stated / billions - 1.0).abs() < 0.01, "{name}: {stated}");
        }
    }
}
