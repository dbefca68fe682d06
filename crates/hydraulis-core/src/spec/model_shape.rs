//! The shape of a decoder: the sizes that determine a model's cost.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Grouped, ProfileError, Result};
use crate::units::count;

/// Largest value of one field. All models are far below this limit, and the product of all fields fits into 128 bits.
const MOST: u64 = 1 << 24;
/// Largest number of parameters of a model. All models are far below this limit, and the parameters' bytes, sent to
/// every node of a cluster, fit into 64 bits.
pub(crate) const MOST_PARAMETERS: u64 = 1 << 43;
/// Largest number of rows of a parameter table, several times the number of any decoder.
const MOST_ROWS: usize = 256;
/// Placeholder in the name of a row for the index of every layer.
const ANY_LAYER: &str = "*";

/// The shape of a decoder with grouped-query attention and a gated MLP, under the names of a Hugging Face
/// `config.json`, and its parameter table.
///
/// Two models of equal shape have equal costs, because the values of the weights do not matter. A cost profile is
/// therefore measured for a shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "ShapeFields", into = "ShapeFields")]
pub struct ModelShape(ShapeFields);

/// The fields of a shape in a document, before validation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShapeFields {
    /// Rows of the embedding and of the head.
    pub vocab_size: u64,
    /// Width of the residual stream.
    pub hidden_size: u64,
    /// Width inside the MLP.
    pub intermediate_size: u64,
    /// Number of decoder layers.
    pub num_hidden_layers: u64,
    /// Number of query heads.
    pub num_attention_heads: u64,
    /// Number of key/value heads.
    pub num_key_value_heads: u64,
    /// Width of one head.
    pub head_dim: u64,
    /// The parameter table. One row describes a parameter of all layers. Python makes the table
    /// (`model/parameters.py`); the core only reads it.
    pub parameters: Vec<ParameterRow>,
}

/// One parameter of the model, or one parameter of every layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParameterRow {
    /// Name of the parameter; `*` stands for the index of every layer.
    pub name: String,
    /// Size of the dimension that tensor parallelism splits, or of the first dimension if it splits none.
    pub rows: u64,
    /// Elements of one row.
    pub row_elements: u64,
    /// Number of equal runs of rows between which tensor parallelism may split; 1 if each rank has the whole parameter.
    pub units: u64,
    /// Parts of the model that use the parameter. A tied embedding has two.
    pub parts: Vec<ModelPart>,
    /// Whether training updates it; absent in documents for true. Under adapters the base model is frozen.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub trained: bool,
}

fn yes() -> bool {
    true
}

/// A part of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelPart {
    /// The embedding.
    Embedding,
    /// Each layer.
    Layer,
    /// The last norm and the head.
    Head,
}

impl ParameterRow {
    /// The name of the parameter in one layer.
    pub(crate) fn name_in(&self, layer: u32) -> String {
        self.name.replacen(ANY_LAYER, &layer.to_string(), 1)
    }

    /// Whether the row describes a parameter of every layer.
    pub(crate) fn is_of_layers(&self) -> bool {
        self.parts == [ModelPart::Layer]
    }

    fn elements(&self) -> u128 {
        u128::from(self.rows) * u128::from(self.row_elements)
    }

    /// The name, value and limit of the first field outside its range.
    fn wrong(&self) -> Option<(&'static str, u64, String)> {
        let fields = [
            ("parameters.rows", self.rows),
            ("parameters.row_elements", self.row_elements),
            ("parameters.units", self.units),
        ];
        let outside = fields.into_iter().find(|(_, value)| !(1..=MOST).contains(value));
        if let Some((field, value)) = outside {
            return Some((field, value, format!("from 1 to {}", Grouped(MOST))));
        }
        if !self.rows.is_multiple_of(self.units) {
            return Some(("parameters.units", self.units, format!("a divisor of the {} rows", Grouped(self.rows))));
        }
        let layers = self.name.matches(ANY_LAYER).count();
        match self.parts.as_slice() {
            [ModelPart::Layer] if layers != 1 => {
                Some(("parameters.name", layers as u64, "1, the number of * in the name".into()))
            }
            [_] | [ModelPart::Embedding, ModelPart::Head] => None,
            parts => Some(("parameters.parts", parts.len() as u64, "1, or embedding and head".into())),
        }
    }
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
        fields.check_rows()?;
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

    fn check_rows(&self) -> Result<()> {
        let refuse = |field, value: u64, limit| Err(Error::ModelShape { field, value: value.to_string(), limit });
        if self.parameters.len() > MOST_ROWS {
            return refuse("parameters", self.parameters.len() as u64, format!("at most {MOST_ROWS} rows"));
        }
        for row in &self.parameters {
            if let Some((field, value, limit)) = row.wrong() {
                return refuse(field, value, format!("{limit}, in '{}'", row.name));
            }
        }
        if self.layer_matrices() == 0 {
            return refuse("parameters", 0, "at least one matrix in each layer".into());
        }
        Ok(())
    }

    fn is_tied(&self) -> bool {
        self.parameters.iter().any(|row| row.parts.len() > 1)
    }

    /// Number of elements of the rows that `select` accepts. The count has 128 bits, because the parameters of a model
    /// may exceed 64 bits before validation.
    fn elements(&self, select: impl Fn(&ParameterRow) -> bool) -> u128 {
        self.parameters.iter().filter(|row| select(row)).map(ParameterRow::elements).sum()
    }

    fn layer_matrices(&self) -> u128 {
        self.elements(|row| row.is_of_layers() && row.row_elements > 1)
    }

    fn layer_parameters(&self) -> u128 {
        self.elements(ParameterRow::is_of_layers)
    }

    fn vocabulary_parameters(&self) -> u128 {
        u128::from(self.vocab_size) * u128::from(self.hidden_size)
    }

    fn parameters(&self) -> u128 {
        let of_layers = u128::from(self.num_hidden_layers) * self.layer_parameters();
        of_layers + self.elements(|row| !row.is_of_layers())
    }

    /// The first pair of different rows in the two tables, as text. A missing row reads "no further parameter".
    fn row_difference(&self, other: &ShapeFields) -> Option<(String, String)> {
        let rows = self.parameters.len().max(other.parameters.len());
        let row = |fields: &ShapeFields, index: usize| {
            let row = fields.parameters.get(index);
            row.map_or("no further parameter".into(), |row| {
                let frozen = if row.trained { "" } else { ", frozen" };
                format!("{} [{}, {}]{frozen}", row.name, row.rows, row.row_elements)
            })
        };
        (0..rows).map(|index| (row(self, index), row(other, index))).find(|(here, there)| here != there)
    }
}

impl ModelShape {
    /// Reads and validates the JSON form.
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

    /// The fields of the shape.
    pub fn fields(&self) -> &ShapeFields {
        &self.0
    }

    /// The first field that differs between the two shapes: its name, the value in this shape, and the value in the
    /// other.
    pub fn difference(&self, other: &ModelShape) -> Option<(&'static str, String, String)> {
        let pairs = self.0.numbers().into_iter().zip(other.0.numbers());
        let numbers = pairs.map(|((field, here), (_, there))| (field, here.to_string(), there.to_string()));
        let rows = self.0.row_difference(&other.0).map(|(here, there)| ("parameters", here, there));
        numbers.chain(rows).find(|(_, here, there)| here != there)
    }

    /// Width of all query heads.
    pub fn query_width(&self) -> u64 {
        self.0.num_attention_heads * self.0.head_dim
    }

    /// Width of all key heads, which is also the width of all value heads.
    pub fn key_width(&self) -> u64 {
        self.0.num_key_value_heads * self.0.head_dim
    }

    /// Whether the head uses the embedding's weight.
    pub fn is_tied(&self) -> bool {
        self.0.is_tied()
    }

    /// Number of parameters of one layer's matrices.
    pub fn layer_matrices(&self) -> u64 {
        validated(self.0.layer_matrices())
    }

    /// Number of parameters of one layer: matrices, biases and norms.
    pub fn layer_parameters(&self) -> u64 {
        validated(self.0.layer_parameters())
    }

    /// Number of trained parameters of one layer's matrices.
    pub fn trained_layer_matrices(&self) -> u64 {
        validated(self.0.elements(|row| row.is_of_layers() && row.row_elements > 1 && row.trained))
    }

    /// Number of trained parameters of one layer.
    pub fn trained_layer_parameters(&self) -> u64 {
        validated(self.0.elements(|row| row.is_of_layers() && row.trained))
    }

    /// Number of trained parameters of the whole model.
    pub fn trained_parameters(&self) -> u64 {
        let ends = self.0.elements(|row| !row.is_of_layers() && row.trained);
        self.0.num_hidden_layers * self.trained_layer_parameters() + validated(ends)
    }

    /// Whether the embedding, the last norm and the head are trained: a model's adapters are in its layers alone.
    pub fn trains_vocabulary(&self) -> bool {
        self.0.parameters.iter().any(|row| !row.is_of_layers() && row.trained)
    }

    /// Number of parameters of the embedding, which is also the number of the head without its norm.
    pub fn vocabulary_parameters(&self) -> u64 {
        validated(self.0.vocabulary_parameters())
    }

    /// Cost of the head, in layers. A matrix takes the same operations for each of its parameters.
    pub fn head_layers(&self) -> f64 {
        count(self.vocabulary_parameters()) / count(self.layer_matrices())
    }

    /// Number of parameters of the whole model.
    pub fn parameters(&self) -> u64 {
        validated(self.0.parameters())
    }
}

/// A number of parameters of a validated shape, in 64 bits.
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
        "num_attention_heads":8,"num_key_value_heads":4,"head_dim":6,"parameters":[
            {"name":"embed_tokens.weight","rows":37,"row_elements":24,"units":37,"parts":["embedding","head"]},
            {"name":"layers.*.norm.weight","rows":24,"row_elements":1,"units":1,"parts":["layer"]},
            {"name":"layers.*.q_proj.weight","rows":48,"row_elements":24,"units":8,"parts":["layer"]},
            {"name":"layers.*.q_proj.bias","rows":48,"row_elements":1,"units":8,"parts":["layer"]},
            {"name":"layers.*.up_proj.weight","rows":42,"row_elements":24,"units":42,"parts":["layer"]},
            {"name":"norm.weight","rows":24,"row_elements":1,"units":1,"parts":["head"]}]}"#;

    #[test]
    fn parameters_are_counted() {
        let small = shape(SMALL).unwrap();
        // A layer has matrices of 24 x 48 and 24 x 42, a norm and a bias. The tied embedding counts once.
        assert_eq!(small.layer_matrices(), 2_160);
        assert_eq!(small.layer_parameters(), 2_160 + 24 + 48);
        assert_eq!(small.parameters(), 3 * 2_232 + 37 * 24 + 24);
        assert!((small.head_layers() - 37.0 * 24.0 / 2_160.0).abs() < 1e-15);
        assert!(small.is_tied());
        assert_eq!(shape(&serde_json::to_string(&small).unwrap()).unwrap(), small);
    }

    #[test]
    fn frozen_rows_are_counted_apart_and_differ_from_trained_ones() {
        let frozen = shape(&SMALL.replace("\"parts\":[\"layer\"]", "\"parts\":[\"layer\"],\"trained\":false")).unwrap();
        assert_eq!((frozen.trained_layer_parameters(), frozen.trained_layer_matrices()), (0, 0));
        assert_eq!(frozen.trained_parameters(), 37 * 24 + 24);
        assert!(frozen.trains_vocabulary());
        let text = serde_json::to_string(&frozen).unwrap();
        assert_eq!(shape(&text).unwrap(), frozen);
        let small = shape(SMALL).unwrap();
        assert_eq!(small.trained_parameters(), small.parameters());
        assert!(!serde_json::to_string(&small).unwrap().contains("trained"));
        let named = ["layers.*.norm.weight [24, 1]", "layers.*.norm.weight [24, 1], frozen"].map(String::from);
        let [here, there] = named;
        assert_eq!(small.difference(&frozen), Some(("parameters", here, there)));
    }

    #[test]
    fn the_first_difference_is_named() {
        let (small, other) =
            (shape(SMALL).unwrap(), shape(&SMALL.replace("\"head_dim\":6", "\"head_dim\":8")).unwrap());
        assert_eq!(small.difference(&small), None);
        assert_eq!(small.difference(&other), Some(("head_dim", "6".into(), "8".into())));
        let wider = shape(&SMALL.replace("\"rows\":42,", "\"rows\":84,")).unwrap();
        let named = ["layers.*.up_proj.weight [42, 24]", "layers.*.up_proj.weight [84, 24]"].map(String::from);
        assert_eq!(small.difference(&wider), Some(("parameters", named[0].clone(), named[1].clone())));
    }

    #[test]
    fn an_invalid_shape_is_refused_by_field() {
        for (field, bad) in
            [("hidden_size\":24", "hidden_size\":0"), ("num_key_value_heads\":4", "num_key_value_heads\":3")]
        {
            let error = shape(&SMALL.replace(field, bad)).unwrap_err().to_string();
            assert!(error.contains(field.split('"').next().unwrap()), "{error}");
        }
    }

    #[test]
    fn rows_out_of_range_are_refused_by_name() {
        for (good, bad, part) in [
            ("\"rows\":42,", "\"rows\":0,", "rows is 0"),
            ("\"row_elements\":1,", "\"row_elements\":16777217,", "row_elements is 16,777,217"),
            ("\"units\":8,", "\"units\":7,", "units is 7"),
            ("[\"embedding\",\"head\"]", "[\"head\",\"embedding\"]", "parts"),
            ("[\"embedding\",\"head\"]", "[]", "parts"),
            ("layers.*.norm", "layers.norm", "'layers.norm.weight'"),
            ("\"row_elements\":24,\"units\":8,", "\"row_elements\":1,\"units\":8,", ""),
        ] {
            let text = SMALL.replace(good, bad);
            assert_ne!(text, SMALL, "{good}");
            if part.is_empty() {
                // One matrix remains in each layer.
                assert!(shape(&text).is_ok());
                continue;
            }
            let error = ModelShape::from_json(&text).unwrap_err();
            assert!(error.code() == "model_invalid" && error.to_string().contains(part), "{error}");
        }
        let without = SMALL.replace("\"row_elements\":24,\"units\":8,", "\"row_elements\":1,\"units\":8,");
        let without = without.replace("\"row_elements\":24,\"units\":42,", "\"row_elements\":1,\"units\":42,");
        assert!(ModelShape::from_json(&without).unwrap_err().to_string().contains("one matrix in each layer"));
    }

    #[test]
    fn more_parameters_than_any_model_has_are_refused() {
        let widest = SMALL.replace(
            "\"rows\":42,\"row_elements\":24,\"units\":42",
            "\"rows\":16777216,\"row_elements\":16777216,\"units\":1",
        );
        let error = ModelShape::from_json(&widest).unwrap_err();
        assert_eq!(error.code(), "model_invalid");
        assert!(error.to_string().contains("at most 8,796,093,022,208"), "{error}");
        let row = |name: &str, part| ParameterRow {
            name: name.into(),
            rows: MOST,
            row_elements: MOST,
            units: MOST,
            parts: vec![part],
            trained: true,
        };
        let everything = ShapeFields {
            vocab_size: MOST,
            hidden_size: MOST,
            intermediate_size: MOST,
            num_hidden_layers: MOST,
            num_attention_heads: MOST,
            num_key_value_heads: MOST,
            head_dim: MOST,
            parameters: vec![row("layers.*.w", ModelPart::Layer); MOST_ROWS],
        };
        assert_eq!(ModelShape::try_from(everything).unwrap_err().code(), "model_invalid");
    }
}
