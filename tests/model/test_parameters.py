"""The table has the decoder's parameters, with the splits of tensor parallelism."""

import subprocess
import sys

import pytest

from helpers import at_least, refused
from hydraulis.model.parameters import layer_of, named_rows, parameter_rows, row_of, row_parallel_modules
from small_model import FAMILIES, build_decoder, small_config

BIASED = small_config(**FAMILIES["every bias"], qk_norm=True)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_decoder_has_these_parameters_in_this_order(family: str, *, tied: bool) -> None:
    config = small_config(**(FAMILIES[family] | {"tie_word_embeddings": tied}))
    of_decoder = [
        (name, tuple(parameter.shape)) for name, parameter in build_decoder(config).named_parameters()
    ]
    assert [(row.name, row.shape) for row in named_rows(config).values()] == at_least(20, of_decoder)


def test_matrices_are_split_and_norms_are_whole() -> None:
    rows = at_least(3 + 9 + 7 + 2, parameter_rows(BIASED))

    def modules(dim: int | None, leaf: str) -> set[str]:
        return {row.name.split(".")[-2] for row in rows if row.split_dim == dim and row.name.endswith(leaf)}

    norms = {"input_layernorm", "post_attention_layernorm", "q_norm", "k_norm", "norm"}
    assert modules(1, "weight") == {"o_proj", "down_proj"}
    assert modules(None, "weight") == norms
    assert modules(None, "bias") == {"o_proj", "down_proj"}
    assert modules(0, "bias") == {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"}
    assert modules(1, "bias") == set()
    assert row_parallel_modules(BIASED) == ["self_attn.o_proj", "mlp.down_proj"]


def test_heads_stay_whole_and_other_rows_are_free() -> None:
    names = ("self_attn.q_proj.weight", "self_attn.v_proj.bias", "self_attn.o_proj.bias", "mlp.up_proj.bias")
    units = [row_of(f"layers.0.{name}", BIASED).split_units for name in names]
    assert units == [8, 4, 1, BIASED.intermediate_size]


def test_layer_groups_are_numbered_from_the_embedding_to_the_head() -> None:
    config = small_config(tie_word_embeddings=True)
    head = config.num_hidden_layers + 1
    groups = {name: row.layer_groups(config.num_hidden_layers) for name, row in named_rows(config).items()}
    assert groups["embed_tokens.weight"] == [0, head]
    assert groups["layers.2.mlp.up_proj.weight"] == [layer_of("layers.2.mlp.up_proj.weight") + 1] == [3]
    assert groups["norm.weight"] == [head]


def test_an_unknown_parameter_is_refused_by_name() -> None:
    with refused("argument_invalid", "'layers.0.self_attn.gate.weight'"):
        row_of("layers.0.self_attn.gate.weight", BIASED)


def test_the_table_needs_no_torch() -> None:
    code = "import sys, hydraulis.model.parameters; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
