"""The shape of a model as the core takes it: what a cost profile is measured for."""

import json
from collections.abc import Sequence

from hydraulis._core import LayerSplit, ModelShape
from hydraulis.config.model import ModelConfig

_NUMBERS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)
# In alphabetical order, so that two equal shapes are written alike.
_SWITCHES = ("attention_bias", "attention_output_bias", "mlp_bias", "qk_norm", "tie_word_embeddings")


def shape_of(config: ModelConfig) -> ModelShape:
    """Take from a model's configuration what decides about its cost.

    Raises:
        InvalidInputError: a number is beyond what the core takes (code `model_shape`).
    """
    fields: dict[str, object] = {name: getattr(config, name) for name in _NUMBERS}
    fields["switches"] = [name for name in _SWITCHES if getattr(config, name)]
    return ModelShape.from_json(json.dumps(fields))


def layer_split_of(config: ModelConfig, stage_layers: Sequence[Sequence[int]] = ()) -> LayerSplit:
    """Give how a model's layers are shared out over stages: by cost, or for some numbers of stages as stated.

    Raises:
        InvalidInputError: what is stated is no split of the model's layers (code `layer_split`), or the model
            is beyond what the core takes (`model_shape`).
    """
    head_layers = shape_of(config).head_layers
    return LayerSplit(config.num_hidden_layers, head_layers=head_layers, stated=stage_layers)
