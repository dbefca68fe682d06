//! The parameters of a decoder, from its shape alone.

use crate::error::Result;
use crate::layout::{Parameter, ParameterTable};
use crate::spec::{LayerSplit, ModelShape, ShapeFields};

impl ParameterTable {
    /// The table of a model of this shape, as the runtime would make it of the model itself (tested from Python).
    pub fn of_model(model: &ModelShape) -> Result<ParameterTable> {
        let split = LayerSplit::of(model);
        let head = split.layers() + 1;
        let &ShapeFields { vocab_size, hidden_size, .. } = model.fields();
        let embedding = Parameter {
            blocks: if model.is_tied() { vec![0, head] } else { vec![0] },
            ..free("embed_tokens.weight".into(), vocab_size, hidden_size, 0)
        };
        let mut parameters = vec![embedding];
        for layer in 0..split.layers() {
            parameters.extend(of_layer(model, layer));
        }
        parameters.push(whole("norm.weight".into(), hidden_size, head));
        if !model.is_tied() {
            parameters.push(free("lm_head.weight".into(), vocab_size, hidden_size, head));
        }
        ParameterTable::new(parameters, split)
    }
}

fn of_layer(model: &ModelShape, layer: u32) -> Vec<Parameter> {
    let fields = model.fields();
    let has = |switch: &str| fields.switches.iter().any(|known| known == switch);
    let (hidden, inner, block) = (fields.hidden_size, fields.intermediate_size, layer + 1);
    let name = |rest: &str| format!("layers.{layer}.{rest}");
    let heads = |rest: &str, width, row_elements, heads| Parameter {
        units: heads,
        ..free(name(rest), width, row_elements, block)
    };
    let (queries, keys) = (fields.num_attention_heads, fields.num_key_value_heads);
    let (query, key) = (model.query_width(), model.key_width());
    let mut parameters = vec![whole(name("input_layernorm.weight"), hidden, block)];
    for (map, width, units) in [("q_proj", query, queries), ("k_proj", key, keys), ("v_proj", key, keys)] {
        parameters.push(heads(&format!("self_attn.{map}.weight"), width, hidden, units));
        if has("attention_bias") {
            parameters.push(heads(&format!("self_attn.{map}.bias"), width, 1, units));
        }
    }
    parameters.push(heads("self_attn.o_proj.weight", query, hidden, queries));
    if has("attention_output_bias") {
        parameters.push(whole(name("self_attn.o_proj.bias"), hidden, block));
    }
    if has("qk_norm") {
        parameters.extend(
            ["q_norm", "k_norm"].map(|norm| whole(name(&format!("self_attn.{norm}.weight")), fields.head_dim, block)),
        );
    }
    parameters.push(whole(name("post_attention_layernorm.weight"), hidden, block));
    for map in ["gate_proj", "up_proj", "down_proj"] {
        parameters.push(free(name(&format!("mlp.{map}.weight")), inner, hidden, block));
        if has("mlp_bias") {
            let bias = name(&format!("mlp.{map}.bias"));
            parameters.push(if map == "down_proj" { whole(bias, hidden, block) } else { free(bias, inner, 1, block) });
        }
    }
    parameters
}

/// A parameter that tensor ranks may cut at any row.
fn free(name: String, rows: u64, row_elements: u64, block: u32) -> Parameter {
    Parameter { name, rows, row_elements, units: rows, blocks: vec![block] }
}

/// A vector that every tensor rank holds.
fn whole(name: String, rows: u64, block: u32) -> Parameter {
    Parameter { units: 1, ..free(name, rows, 1, block) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"{"vocab_size":37,"hidden_size":24,"intermediate_size":42,"num_hidden_layers":3,
        "num_attention_heads":8,"num_key_value_heads":4,"head_dim":6,"switches":[]}"#;

    #[test]
    fn it_has_as_many_parameters_as_the_shape_says() {
        for switches in ["[]", r#"["tie_word_embeddings"]"#] {
            let model = ModelShape::from_json(&SMALL.replace("[]", switches)).unwrap();
            let table = ParameterTable::of_model(&model).unwrap();
            assert_eq!(table.parameters().iter().map(Parameter::elements).sum::<u64>(), model.parameters());
            assert_eq!(table.buckets(), 5);
        }
    }
}
