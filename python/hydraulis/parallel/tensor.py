"""Tensor parallelism with sequence parallelism, hooked on a decoder from outside.

Between the blocks each rank holds [t, H]: its slice of the tokens. Attention and MLP see all tokens and this
rank's heads or columns; a hook before them gathers the tokens, a hook after them sums the ranks' outputs and
scatters the tokens. The embedding looks up this rank's vocabulary rows and the sum is scattered likewise;
the head has this rank's vocabulary rows, and its loss gathers the tokens (parallel/vocabulary.py).

So every split parameter's gradient is complete on the rank that holds the slice. Of a parameter that several
ranks hold it is *partial* on each, and their sum is the gradient: norms of the stream run on [t, H] and cover
this rank's tokens; q_norm and k_norm cover its heads, and so does a key/value head that several ranks hold
because there are fewer of them than ranks; a bias of the output maps enters each rank's addend by 1/tp.
Nothing here takes that sum; the owner of the master parameter does.

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


def split_range(units: int, parts: int, index: int) -> range:
    """Return the units of one part: in order, even but for 1, and a copy where there are fewer than parts.

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
        InvalidInputError: it cannot; the message names the field (code `scheme_model_mismatch`).
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
    model: Decoder, group: dist.ProcessGroup | None, tensor_slice: int, tp: int
) -> list[RemovableHandle]:
    """Hook the collectives on a decoder or a stage of one; its weights are sliced by the caller.

    The forward then takes tokens_T (all of them) if there is an embedding, else hidden_tH, and returns
    hidden_tH. The segments stay those of all T tokens.

    Args:
        model: whole or cut; weights may be sliced before or after, along their rows' `split_dim`, by
            `split_range` of their `split_units`.
        group: the tp ranks, in any order of their slices; None if tp is 1.
        tensor_slice: which of the tp slices of the weights is this rank's.
        tp: the size of the group.

    Returns:
        A handle per hook; removing them all undoes this call. Empty if tp is 1.

    Raises:
        InvalidInputError: the model cannot be split so (code `scheme_model_mismatch`).
    """
    check_tensor_degree(model.config, tp)
    if tp == 1:
        return []
    tokens = _TokenHooks(group)
    handles = []
    output_names = row_parallel_modules(model.config)
    for layer in model.layers.values():
        handles += _hook_layer(layer, output_names, tokens, tp)
    if model.embed_tokens is not None:
        vocabulary = _VocabularyHooks(split_range(model.config.vocab_size, tp, tensor_slice), group)
        handles.append(model.embed_tokens.register_forward_pre_hook(vocabulary.keep_own_rows))
        handles.append(model.embed_tokens.register_forward_hook(vocabulary.reduce_output))
    return handles


def _hook_layer(
    layer: nn.Module, output_names: Sequence[str], tokens: "_TokenHooks", tp: int
) -> list[RemovableHandle]:
    handles = []
    for output_name in output_names:
        block = layer.get_submodule(output_name.rpartition(".")[0])
        handles.append(block.register_forward_pre_hook(tokens.gather_input))
        handles.append(block.register_forward_hook(tokens.reduce_output))
    output_maps = [layer.get_submodule(name) for name in output_names]
    bias = _BiasShare(tp)
    biased = [output_map for output_map in output_maps if "bias" in dict(output_map.named_parameters())]
    handles += [output_map.register_forward_hook(bias.keep_share) for output_map in biased]
    return handles


class _TokenHooks:
    """Gathers a block's input over the tokens, and sums and scatters its output."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group

    def gather_input(self, _module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        x_tH, *others = args
        return (all_gather_tokens(x_tH, self.group), *others)

    def reduce_output(self, _module: nn.Module, _args: tuple[Any, ...], y_TH: Tensor) -> Tensor:
        return reduce_scatter_tokens(y_TH, self.group)


class _BiasShare:
    """Leaves 1/tp of a bias in each rank's addend, so that their sum has it once."""

    def __init__(self, tp: int) -> None:
        self.excess = (tp - 1) / tp

    def keep_share(self, output_map: nn.Module, _args: tuple[Any, ...], y_TH: Tensor) -> Tensor:
        return y_TH - self.excess * output_map.get_parameter("bias")


class _VocabularyHooks:
    """Looks up this rank's rows; a token of another rank's row gives zeros here."""

    def __init__(self, rows: range, group: dist.ProcessGroup | None) -> None:
        self.rows = rows
        self.group = group
        self._foreign_T: Tensor | None = None

    def keep_own_rows(self, _module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        (tokens_T,) = args
        # Kept for the hook after the lookup, which is handed the changed tokens only.
        self._foreign_T = (tokens_T < self.rows.start) | (tokens_T >= self.rows.stop)
        return ((tokens_T - self.rows.start).masked_fill(self._foreign_T, 0),)

    def reduce_output(self, _module: nn.Module, _args: tuple[Any, ...], y_TH: Tensor) -> Tensor:
        foreign_T, self._foreign_T = self._foreign_T, None
        assert foreign_T is not None
        own_TH = y_TH.masked_fill(foreign_T[:, None], 0)
        return reduce_scatter_tokens(own_TH, self.group)


def _refuse(tp: int, cause: str, remedy: str) -> None:
    message = f"tensor degree tp = {tp} {cause}; {remedy}"
    raise InvalidInputError(message, code="scheme_model_mismatch")
