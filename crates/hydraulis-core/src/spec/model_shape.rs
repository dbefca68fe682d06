//! What decides about the cost of a decoder: its shape.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Grouped, ProfileError, Result};
use crate::units::count;

/// No model is near it; the product of all of them is counted in 128 bits.
const MOST: u64 = 1 << 24;
/// No model is near it, and bytes of so many, sent to every node that a cluster may have, are still counted in 64 bits.
pub(crate) const MOST_PARAMETERS: u64 = 1 << 43;

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
        let parameters = fields.parameters();
        if parameters > MOST_PARAMETERS.into() {
            let limit = format!("at most {}", Grouped(MOST_PARAMETERS));
            return Err(Error::ModelShape { field: "parameters", value: parameters.to_string(), limit });
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

    fn is_tied(&self) -> bool {
        self.switches.iter().any(|switch| switch == "tie_word_embeddings")
    }

    /// Counts here have 128 bits: what is not validated yet may have more parameters than 64 hold.
    fn layer_matrices(&self) -> u128 {
        let heads = u128::from(self.num_attention_heads) + u128::from(self.num_key_value_heads);
        let attention = 2 * heads * u128::from(self.head_dim);
        u128::from(self.hidden_size) * (attention + 3 * u128::from(self.intermediate_size))
    }

    fn layer_parameters(&self) -> u128 {
        self.layer_matrices() + 2 * u128::from(self.hidden_size)
    }

    fn vocabulary_parameters(&self) -> u128 {
        u128::from(self.vocab_size) * u128::from(self.hidden_size)
    }

    fn parameters(&self) -> u128 {
        let ends = if self.is_tied() { 1 } else { 2 } * self.vocabulary_parameters();
        u128::from(self.num_hidden_layers) * self.layer_parameters() + ends + u128::from(self.hidden_size)
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
        self.0.is_tied()
    }

    /// Parameters of the matrices of one layer: queries and output, keys and values, the three of the MLP.
    pub fn layer_matrices(&self) -> u64 {
        validated(self.0.layer_matrices())
    }

    /// Parameters of one layer: its matrices and both norms.
    pub fn layer_parameters(&self) -> u64 {
        validated(self.0.layer_parameters())
    }

    /// Parameters of the embedding, and of the head without its norm.
    pub fn vocabulary_parameters(&self) -> u64 {
        validated(self.0.vocabulary_parameters())
    }

    /// How many layers cost as much as the head: a matrix takes the same operations for each of its parameters.
    pub fn head_layers(&self) -> f64 {
        count(self.vocabulary_parameters()) / count(self.layer_matrices())
    }

    /// Parameters of the whole model.
    pub fn parameters(&self) -> u64 {
        validated(self.0.parameters())
    }
}

/// Some of the parameters of a shape.
fn validated(parameters: u128) -> u64 {
    u64::try_from(parameters).expect("a shape has no more than MOST_PARAMETERS")
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

    #[test]
    fn more_parameters_than_any_model_has_are_refused() {
        let most = "16777216";
        for widest in [["hidden_size\":24", "intermediate_size\":42"], ["num_attention_heads\":8", "head_dim\":6"]] {
            let text = widest.iter().fold(SMALL.to_owned(), |text, field| {
                text.replace(field, &format!("{}:{most}", field.split(':').next().unwrap()))
            });
            let error = ModelShape::from_json(&text).unwrap_err();
            assert_eq!(error.code(), "model_shape");
            assert!(error.to_string().contains("at most 8,796,093,022,208"), "{error}");
        }
        let everything = ShapeFields {
            vocab_size: MOST,
            hidden_size: MOST,
            intermediate_size: MOST,
            num_hidden_layers: MOST,
            num_attention_heads: MOST,
            num_key_value_heads: MOST,
            head_dim: MOST,
            switches: Vec::new(),
        };
        assert_eq!(ModelShape::try_from(everything).unwrap_err().code(), "model_shape");
    }
}
