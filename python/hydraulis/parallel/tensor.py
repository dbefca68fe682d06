"""Tensor parallelism with sequence parallelism, applied to a decoder by hooks.

Outside attention and MLP each rank has [t, H], its slice of the tokens. Attention and MLP see all tokens and
this rank's heads or columns: a hook before them gathers the tokens, and a hook after them sums the ranks'
outputs and scatters the tokens. The embedding looks up this rank's vocabulary rows, and its output is summed
and scattered in the same way. The head has this rank's vocabulary rows, and its loss gathers the tokens
(parallel/vocabulary.py).

The gradient of a split parameter is complete on the rank of the slice. The gradient of a replicated parameter
is *partial* on each rank, and the sum over the ranks is the gradient:

- The norms of the stream run on [t, H] and see this rank's tokens.
- q_norm and k_norm see this rank's heads. So does a replicated key/value head, where there are fewer
  key/value heads than ranks.
- The bias of an output projection enters each rank's addend by 1/tp.

The owner of the master parameter computes these sums, outside this module.

Legend: T tokens of the packed micro-batch, t = T/tp tokens of this rank, H hidden, v vocabulary rows of this
rank.
"""

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hydraulis.config.model import ModelConfig
from hydraulis.errors import InvalidInputError
from hydraulis.model.decoder import Decoder
from hydraulis.model.parameters import row_parallel_modules
from hydraulis.parallel.collectives import all_gather_tokens, reduce_scatter_tokens
from hydraulis.parallel.symmetric_memory import SymmetricBuffer


def split_range(units: int, parts: int, index: int) -> range:
    """Return the units of one part: sizes differ by at most 1; parts repeat units if there are too few.

    >>> [split_range(37, 4, index) for index in range(4)]
    [range(0, 9), range(9, 18), range(18, 27), range(27, 37)]
    >>> [split_range(2, 4, index) for index in range(4)]
    [range(0, 1), range(0, 1), range(1, 2), range(1, 2)]
    """
    first = units * index // parts
    return range(first, max(first + 1, units * (index + 1) // parts))


def check_tensor_degree(config: ModelConfig, tp: int) -> None:
    """Check that the model can be split over `tp` ranks.

    Raises:
        InvalidInputError: The degree does not fit a field, which the message names (code
            `scheme_model_mismatch`).
    """
    if tp < 1:
        _refuse(tp, "is below its limit of 1", "choose a positive degree")
    if config.num_attention_heads % tp:
        _refuse(tp, f"does not divide num_attention_heads = {config.num_attention_heads}", "choose a divisor")
    heads = config.num_key_value_heads
    if heads % tp and tp % heads:
        _refuse(
            tp,
            f"neither divides num_key_value_heads = {heads} nor is a multiple of it",
            "choose a degree that does",
        )
    for name in ("vocab_size", "intermediate_size"):
        if getattr(config, name) < tp:
            _refuse(tp, f"is above its limit of {name} = {getattr(config, name)}", "choose a smaller degree")


def apply_tensor_parallel(
    model: Decoder,
    group: dist.ProcessGroup | None,
    tensor_slice: int,
    tp: int,
    buffer: SymmetricBuffer | None = None,
) -> list[RemovableHandle]:
    """Add the collectives to a decoder or a pipeline stage as hooks; the caller slices the weights.

    The forward then takes tokens_T (all tokens) if the embedding is present, otherwise hidden_tH, and returns
    hidden_tH. The segments remain those of all T tokens.

    Args:
        model: Whole decoder or stage. The weights may be sliced before or after this call, along the
            `split_dim` of their rows, by `split_range` of their `split_units`.
        group: Tensor group, in any order of the slices; None if tp is 1.
        tensor_slice: Index of this rank's slice of the weights, below tp.
        tp: Size of the group.
        buffer: The group's symmetric buffer, which exchanges in place of the group; None for none.

    Returns:
        A handle per hook; removing all handles undoes this call. Empty if tp is 1.

    Raises:
        InvalidInputError: The degree does not fit the model (code `scheme_model_mismatch`).
    """
    check_tensor_degree(model.config, tp)
    if tp == 1:
        return []
    tokens = _TokenHooks(group, buffer)
    handles = []
    output_names = row_parallel_modules(model.config)
    for layer in model.layers.values():
        handles += _hook_layer(layer, output_names, tokens, tp)
    if model.embed_tokens is not None:
        vocabulary = _VocabularyHooks(split_range(model.config.vocab_size, tp, tensor_slice), tokens)
        handles.append(model.embed_tokens.register_forward_pre_hook(vocabulary.keep_own_rows))
        handles.append(model.embed_tokens.register_forward_hook(vocabulary.reduce_output))
    return handles


def _hook_layer(
    layer: nn.Module, output_names: Sequence[str], tokens: "_TokenHooks", tp: int
) -> list[RemovableHandle]:
    handles = []
    for output_name in output_names:
        split_module = layer.get_submodule(output_name.rpartition(".")[0])
        handles.append(split_module.register_forward_pre_hook(tokens.gather_input))
        handles.append(split_module.register_forward_hook(tokens.reduce_output))
    output_maps = [layer.get_submodule(name) for name in output_names]
    bias = _BiasShare(tp)
    biased = [output_map for output_map in output_maps if "bias" in dict(output_map.named_parameters())]
    handles += [output_map.register_forward_hook(bias.keep_share) for output_map in biased]
    return handles


class _TokenHooks:
    """Gathers the tokens of a module's input, and sums and scatters its output."""

    def __init__(self, group: dist.ProcessGroup | None, buffer: SymmetricBuffer | None) -> None:
        self.way = group, buffer

    def gather_input(self, _module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        x_tH, *others = args
        return (all_gather_tokens(x_tH, *self.way), *others)

    def reduce_output(self, _module: nn.Module, _args: tuple[Any, ...], y_TH: Tensor) -> Tensor:
        return reduce_scatter_tokens(y_TH, *self.way)


class _BiasShare:
    """Leaves 1/tp of a bias in each rank's addend, so that the sum has the bias once."""

    def __init__(self, tp: int) -> None:
        self.excess = (tp - 1) / tp

    def keep_share(self, output_map: nn.Module, _args: tuple[Any, ...], y_TH: Tensor) -> Tensor:
        return y_TH - self.excess * output_map.get_parameter("bias")


class _VocabularyHooks:
    """Looks up this rank's rows; a token of another rank's row gives zeros on this rank.

    The lookup takes some row of this rank for it. These rows differ, because one program of the gradient's
    kernel adds up all tokens of a row.
    """

    def __init__(self, rows: range, tokens: _TokenHooks) -> None:
        self.rows = rows
        self._tokens = tokens
        self._foreign_T: Tensor | None = None

    def keep_own_rows(self, _module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        (tokens_T,) = args
        # Stored for the hook after the lookup, which receives only the changed tokens.
        self._foreign_T = (tokens_T < self.rows.start) | (tokens_T >= self.rows.stop)
        return ((tokens_T - self.rows.start) % len(self.rows),)

    def reduce_output(self, module: nn.Module, args: tuple[Any, ...], y_TH: Tensor) -> Tensor:
        foreign_T, self._foreign_T = self._foreign_T, None
        assert foreign_T is not None
        return self._tokens.reduce_output(module, args, y_TH.masked_fill(foreign_T[:, None], 0))


def _refuse(tp: int, cause: str, remedy: str) -> None:
    message = f"tensor degree tp = {tp} {cause}; {remedy}"
    raise InvalidInputError(message, code="scheme_model_mismatch")
