//! What decides about the cost of a decoder: its shape.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Grouped, ProfileError, Result};
use crate::units::count;

/// No model is near it; products of a few of these stay below 2^53.
const MOST: u64 = 1 << 24;

/// The shape of a decoder with grouped-query attention and a gated MLP, under the names of a Hugging Face `config.json`.
///
/// Two models of equal shape cost the same, whatever their weights; so the shape is what a cost profile is measured for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "ShapeFields", into = "ShapeFields")]
pub struct ModelShape(ShapeFields);

/// A shape as a document gives it, not yet validated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShapeFields {
    /// Rows of the embedding and of the head.
    pub vocab_size: u64,
    /// Width of the residual stream.
    pub hidden_size: u64,
    /// Width inside the MLP.
    pub intermediate_size: u64,
    /// Decoder layers.
    pub num_hidden_layers: u64,
    /// Query heads.
    pub num_attention_heads: u64,
    /// Key/value heads.
    pub num_key_value_heads: u64,
    /// Width of one head.
    pub head_dim: u64,
    /// What it has beside that, by the names of its switches: `qk_norm`, `tie_word_embeddings`, biases.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub switches: Vec<String>,
}

impl TryFrom<ShapeFields> for ModelShape {
    type Error = Error;

    fn try_from(fields: ShapeFields) -> Result<ModelShape> {
        for (field, value) in fields.numbers() {
            if !(1..=MOST).contains(&value) {
                let limit = format!("from 1 to {}", Grouped(MOST));
                return Err(Error::ModelShape { field, value: value.to_string(), limit });
            }
        }
        if !fields.num_attention_heads.is_multiple_of(fields.num_key_value_heads) {
            let limit = format!("a divisor of the {} query heads", fields.num_attention_heads);
            let value = fields.num_key_value_heads.to_string();
            return Err(Error::ModelShape { field: "num_key_value_heads", value, limit });
        }
        Ok(ModelShape(fields))
    }
}

impl From<ModelShape> for ShapeFields {
    fn from(shape: ModelShape) -> ShapeFields {
        shape.0
    }
}

impl ShapeFields {
    fn numbers(&self) -> [(&'static str, u64); 7] {
        [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("head_dim", self.head_dim),
        ]
    }
}

impl ModelShape {
    /// Reads and checks the JSON form.
    pub fn from_json(text: &str) -> Result<ModelShape> {
        let mut document = serde_json::Deserializer::from_str(text);
        let fields: ShapeFields = serde_path_to_error::deserialize(&mut document).map_err(|error| {
            let field = error.path().to_string();
            ProfileError::Syntax { field: format!("model.{field}"), why: error.into_inner().to_string() }
        })?;
        ModelShape::try_from(fields)
    }

    /// The JSON form, on one line.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a shape is numbers and texts alone")
    }

    /// Its fields.
    pub fn fields(&self) -> &ShapeFields {
        &self.0
    }

    /// The first field that differs in another shape: its name, the value here and there.
    pub fn difference(&self, other: &ModelShape) -> Option<(&'static str, String, String)> {
        let pairs = self.0.numbers().into_iter().zip(other.0.numbers());
        let numbers = pairs.map(|((field, here), (_, there))| (field, here.to_string(), there.to_string()));
        let switches = ("switches", self.0.switches.join(" "), other.0.switches.join(" "));
        numbers.chain([switches]).find(|(_, here, there)| here != there)
    }

    /// Width of all query heads.
    pub fn query_width(&self) -> u64 {
        self.0.num_attention_heads * self.0.head_dim
    }

    /// Width of all key heads, and of all value heads.
    pub fn key_width(&self) -> u64 {
        self.0.num_key_value_heads * self.0.head_dim
    }

    /// Whether the head uses the embedding's weight.
    pub fn is_tied(&self) -> bool {
        self.0.switches.iter().any(|switch| switch == "tie_word_embeddings")
    }

    /// Parameters of the matrices of one layer: queries and output, keys and values, the three of the MLP.
    pub fn layer_matrices(&self) -> u64 {
        self.0.hidden_size * (2 * self.query_width() + 2 * self.key_width() + 3 * self.0.intermediate_size)
    }

    /// Parameters of one layer: its matrices and both norms.
    pub fn layer_parameters(&self) -> u64 {
        self.layer_matrices() + 2 * self.0.hidden_size
    }

    /// Parameters of the embedding, and of the head without its norm.
    pub fn vocabulary_parameters(&self) -> u64 {
        self.0.vocab_size * self.0.hidden_size
    }

    /// How many layers cost as much as the head: a matrix takes the same operations for each of its parameters.
    pub fn head_layers(&self) -> f64 {
        count(self.vocabulary_parameters()) / count(self.layer_matrices())
    }

    /// Parameters of the whole model.
    pub fn parameters(&self) -> u64 {
        let ends = if self.is_tied() { 1 } else { 2 } * self.vocabulary_parameters();
        self.0.num_hidden_layers * self.layer_parameters() + ends + self.0.hidden_size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(text: &str) -> serde_json::Result<ModelShape> {
        serde_json::from_str(text)
    }

    const SMALL: &str = r#"{"vocab_size":37,"hidden_size":24,"intermediate_size":42,"num_hidden_layers":3,
        "num_attention_heads":8,"num_key_value_heads":4,"head_dim":6,"switches":["tie_word_embeddings"]}"#;

    #[test]
    fn parameters_are_counted() {
        let small = shape(SMALL).unwrap();
        // 24 x (2 x 48 + 2 x 24 + 3 x 42) and two norms.
        assert_eq!(small.layer_parameters(), 6_480 + 48);
        assert_eq!(small.parameters(), 3 * 6_528 + 37 * 24 + 24);
        assert!((small.head_layers() - 37.0 * 24.0 / 6_480.0).abs() < 1e-15);
        assert_eq!(shape(&serde_json::to_string(&small).unwrap()).unwrap(), small);
    }

    #[test]
    fn the_first_difference_is_named() {
        let (small, other) =
            (shape(SMALL).unwrap(), shape(&SMALL.replace("\"head_dim\":6", "\"head_dim\":8")).unwrap());
        assert_eq!(small.difference(&small), None);
        assert_eq!(small.difference(&other), Some(("head_dim", "6".into(), "8".into())));
        let untied = shape(&SMALL.replace(",\"switches\":[\"tie_word_embeddings\"]", "")).unwrap();
        assert_eq!(small.difference(&untied).map(|(field, ..)| field), Some("switches"));
    }

    #[test]
    fn what_is_no_shape_is_refused_by_field() {
        for (field, bad) in
            [("hidden_size\":24", "hidden_size\":0"), ("num_key_value_heads\":4", "num_key_value_heads\":3")]
        {
            let error = shape(&SMALL.replace(field, bad)).unwrap_err().to_string();
            assert!(error.contains(field.split('"').next().unwrap()), "{error}");
        }
    }
}
