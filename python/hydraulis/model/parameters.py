"""The parameters of a decoder: the one table of names, shapes, splits and layer groups.

A test compares the table with the names and shapes of the decoder's modules. Tensor parallelism splits a
parameter along its `split_dim`, layouts place it by its `parts`, and a cost profile carries the rows as data,
so the planner needs no knowledge of model families. A new family is a new function that yields rows.

This module does not import torch, because the scheduler imports it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Literal, TypeAlias

from hydraulis.config.model import ModelConfig
from hydraulis.errors import InvalidInputError

Part: TypeAlias = Literal["embedding", "layer", "head"]
"""Part of the model that uses a parameter; every layer has the rows of `layer`."""

EMBEDDING_WEIGHT = "embed_tokens.weight"
HEAD_WEIGHT = "lm_head.weight"

# PEFT's names. A is [rank, inputs] and B is [outputs, rank].
_ADAPTER_A = "lora_A.weight"
_ADAPTER_B = "lora_B.weight"

_LAYERS = "layers."
_ANY_LAYER = f"{_LAYERS}*."


@dataclass(frozen=True, slots=True)
class ParameterRow:
    """One parameter of the model, or one parameter in each layer.

    Attributes:
        name: Name of the parameter in the decoder; `*` stands for the index of every layer.
        shape: Sizes of the whole parameter.
        split_dim: Dim along which a tensor group splits it; None if each rank has the whole parameter.
        split_units: Number of equal, indivisible runs of `rows`: heads, or single rows.
        parts: Parts that use it; a tied embedding has two.
        trained: Whether training updates it: every parameter of a model without adapters, and otherwise the
            adapters.
    """

    name: str
    shape: tuple[int, ...]
    split_dim: int | None
    split_units: int
    parts: tuple[Part, ...]
    trained: bool = True

    @property
    def rows(self) -> int:
        """Size of the split dim, or of the first dim if no dim is split."""
        return self.shape[self.split_dim or 0]

    @property
    def row_elements(self) -> int:
        """Number of elements in one row."""
        return math.prod(self.shape) // self.rows

    @property
    def module(self) -> str:
        """Path of the parameter's module, relative to its layer for a parameter of a layer."""
        return self.name.removeprefix(_ANY_LAYER).rpartition(".")[0]

    def layer_groups(self, num_layers: int) -> list[int]:
        """Return the layer groups of the parameter: 0 the embedding, 1 to L the layers, L + 1 the head."""
        if self.parts == ("layer",):
            return [layer_of(self.name) + 1]
        return [0 if part == "embedding" else num_layers + 1 for part in self.parts]


@lru_cache(maxsize=8)
def parameter_rows(config: ModelConfig) -> tuple[ParameterRow, ...]:
    """List the parameters of a decoder in its own order, with one row for all layers."""
    vocabulary = (config.vocab_size, config.hidden_size)
    tied: tuple[Part, ...] = ("embedding", "head")
    embedding_parts = tied if config.tie_word_embeddings else ("embedding",)
    rows = [ParameterRow(EMBEDDING_WEIGHT, vocabulary, 0, config.vocab_size, embedding_parts)]
    of_layer = _with_adapters((*_attention(config), *_mlp(config)), config)
    rows += (replace(row, name=_ANY_LAYER + row.name) for row in of_layer)
    rows.append(_whole("norm.weight", config.hidden_size, "head"))
    if not config.tie_word_embeddings:
        rows.append(ParameterRow(HEAD_WEIGHT, vocabulary, 0, config.vocab_size, ("head",)))
    if config.adapters is not None:
        rows = [replace(row, trained=is_adapter(row.name)) for row in rows]
    return tuple(rows)


@lru_cache(maxsize=8)
def named_rows(config: ModelConfig) -> dict[str, ParameterRow]:
    """List every parameter of every layer by name, in the decoder's own order."""
    rows = parameter_rows(config)
    of_layers = [row for row in rows if row.parts == ("layer",)]
    before, after = rows[: rows.index(of_layers[0])], rows[rows.index(of_layers[-1]) + 1 :]
    expanded = (
        replace(row, name=row.name.replace("*", str(layer)))
        for layer in range(config.num_hidden_layers)
        for row in of_layers
    )
    return {row.name: row for row in (*before, *expanded, *after)}


def row_of(name: str, config: ModelConfig) -> ParameterRow:
    """Look up one parameter.

    Raises:
        InvalidInputError: The decoder has no parameter of this name (code `argument_invalid`).
    """
    rows = named_rows(config)
    if name not in rows:
        known = ", ".join(row.name for row in parameter_rows(config))
        message = f"{name!r} is no parameter of the decoder; its parameters are {known}"
        raise InvalidInputError(message, code="argument_invalid")
    return rows[name]


def layer_of(name: str) -> int:
    """Return the layer index in a parameter's name."""
    return int(name.removeprefix(_LAYERS).partition(".")[0])


def is_adapter(name: str) -> bool:
    """Whether a parameter is the A or the B of an adapter."""
    return name.endswith((_ADAPTER_A, _ADAPTER_B))


def is_adapter_output(name: str) -> bool:
    """Whether a parameter is the B of an adapter, which starts at zero."""
    return name.endswith(_ADAPTER_B)


def adapter_of(name: str, config: ModelConfig) -> tuple[str, str] | None:
    """Return the names of the A and the B that adapt a parameter; None without an adapter."""
    module, _, leaf = name.rpartition(".")
    names = f"{module}.{_ADAPTER_A}", f"{module}.{_ADAPTER_B}"
    return names if leaf == "weight" and names[0] in named_rows(config) else None


def checkpoint_name(name: str) -> str:
    """Return the name of a parameter's tensor in a Hugging Face checkpoint."""
    return name if name == HEAD_WEIGHT else f"model.{name}"


def master_parameter_name(name: str, config: ModelConfig) -> str:
    """Return the name of the table's parameter for a module's parameter.

    With tied embeddings the table has no `lm_head.weight`: the head uses `embed_tokens.weight`, which
    receives the gradients of both uses.
    """
    return EMBEDDING_WEIGHT if config.tie_word_embeddings and name == HEAD_WEIGHT else name


def row_parallel_modules(config: ModelConfig) -> list[str]:
    """List the modules of a layer that are split along dim 1: tensor ranks sum their outputs."""
    return [row.module for row in parameter_rows(config.base) if row.split_dim == 1]


def _attention(config: ModelConfig) -> Iterator[ParameterRow]:
    hidden, head_dim = config.hidden_size, config.head_dim
    queries, keys = config.num_attention_heads, config.num_key_value_heads
    yield _whole("input_layernorm.weight", hidden)
    for module, heads in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
        yield from _column_parallel(
            f"self_attn.{module}", (heads * head_dim, hidden), heads, bias=config.attention_bias
        )
    output = (hidden, queries * head_dim)
    yield from _row_parallel("self_attn.o_proj", output, queries, bias=config.attention_output_bias)
    if config.qk_norm:
        yield _whole("self_attn.q_norm.weight", head_dim)
        yield _whole("self_attn.k_norm.weight", head_dim)


def _mlp(config: ModelConfig) -> Iterator[ParameterRow]:
    hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
    yield _whole("post_attention_layernorm.weight", hidden)
    yield from _column_parallel("mlp.gate_proj", (inner, hidden), inner, bias=bias)
    yield from _column_parallel("mlp.up_proj", (inner, hidden), inner, bias=bias)
    yield from _row_parallel("mlp.down_proj", (hidden, inner), inner, bias=bias)


def _with_adapters(rows: Sequence[ParameterRow], config: ModelConfig) -> Iterator[ParameterRow]:
    """Yield the rows of a layer, and after those of each adapted linear map the rows of its A and its B.

    Tensor parallelism splits an adapter with its linear map: a map with split outputs splits the rows of B,
    one with split inputs the columns of A. The other matrix is whole on every rank.
    """
    targets = () if config.adapters is None else config.adapters.targets
    for module, parameters in groupby(rows, key=attrgetter("module")):
        of_module = list(parameters)
        yield from of_module
        if config.adapters is not None and module.rpartition(".")[2] in targets:
            yield from _adapter(of_module[0], config.adapters.rank)


def _adapter(weight: ParameterRow, rank: int) -> Iterator[ParameterRow]:
    outputs, inputs = weight.shape
    splits_inputs = weight.split_dim == 1
    matrices = ((_ADAPTER_A, (rank, inputs), 1), (_ADAPTER_B, (outputs, rank), 0))
    for leaf, shape, split_dim in matrices:
        name = f"{weight.module}.{leaf}"
        if splits_inputs == (split_dim == 1):
            yield ParameterRow(name, shape, split_dim, weight.split_units, weight.parts)
        else:
            yield ParameterRow(name, shape, None, 1, weight.parts)


def _column_parallel(
    module: str, shape: tuple[int, int], units: int, *, bias: bool
) -> Iterator[ParameterRow]:
    """Yield a matrix with split outputs, and its split bias."""
    yield ParameterRow(f"{module}.weight", shape, 0, units, ("layer",))
    if bias:
        yield ParameterRow(f"{module}.bias", shape[:1], 0, units, ("layer",))


def _row_parallel(module: str, shape: tuple[int, int], units: int, *, bias: bool) -> Iterator[ParameterRow]:
    """Yield a matrix with split inputs, and its whole bias, of which each rank adds 1/tp."""
    yield ParameterRow(f"{module}.weight", shape, 1, units, ("layer",))
    if bias:
        yield _whole(f"{module}.bias", shape[0])


def _whole(name: str, size: int, part: Part = "layer") -> ParameterRow:
    """Return a vector that every rank of a tensor group has whole."""
    return ParameterRow(name, (size,), None, 1, (part,))
