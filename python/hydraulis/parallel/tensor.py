"""Tensor parallelism with sequence parallelism, hooked on a decoder from outside.

Between the blocks each rank holds [t, H]: its slice of the tokens. Attention and MLP see all tokens and this
rank's heads or columns; a hook before them gathers the tokens, a hook after them sums the ranks' outputs and
scatters the tokens. The embedding looks up this rank's vocabulary rows and the sum is scattered likewise;
the head gets all tokens and gives this rank's vocabulary columns of the logits.

So every split parameter's gradient is complete on the rank that holds the slice. Norms run on [t, H], so
their gradient on one rank is *partial*: it covers that rank's tokens only, and the ranks' sum is the
gradient. Nothing here takes that sum; the owner of the master parameter does.

Legend: T tokens of the packed micro-batch, t = T/tp tokens of this rank, H hidden, v vocabulary rows of this
rank.
"""

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hydraulis.config.model import ModelConfig
from hydraulis.errors import InvalidInputError
from hydraulis.model.decoder import Decoder
from hydraulis.parallel.collectives import all_gather_tokens, reduce_scatter_tokens

_SPLIT_DIM: dict[str, int | None] = {
    "embed_tokens": 0,
    "q_proj": 0,
    "k_proj": 0,
    "v_proj": 0,
    "o_proj": 1,
    "gate_proj": 0,
    "up_proj": 0,
    "down_proj": 1,
    "lm_head": 0,
    "input_layernorm": None,
    "post_attention_layernorm": None,
    "norm": None,
}
"""By module name: the dim of its weight that the ranks of a tensor group share out; None is whole on each."""


def split_dim(parameter_name: str) -> int | None:
    """Return the dim along which tensor parallelism splits a parameter, or None if every rank holds it.

    Args:
        parameter_name: such as `layers.0.self_attn.q_proj.weight`.

    Raises:
        InvalidInputError: the decoder has no such parameter (code `parameter_name`).
    """
    module_name = parameter_name.removesuffix(".weight").rpartition(".")[2]
    if module_name not in _SPLIT_DIM:
        message = f"{parameter_name!r} is no parameter of the decoder; known modules: {', '.join(_SPLIT_DIM)}"
        raise InvalidInputError(message, code="parameter_name")
    return _SPLIT_DIM[module_name]


def split_range(rows: int, parts: int, index: int) -> range:
    """Return the rows of one part; parts are in order, and their sizes differ by at most 1.

    >>> [split_range(37, 4, index) for index in range(4)]
    [range(0, 9), range(9, 18), range(18, 27), range(27, 37)]
    """
    return range(rows * index // parts, rows * (index + 1) // parts)


def check_tensor_degree(config: ModelConfig, tp: int) -> None:
    """Check that the model can be split over `tp` ranks.

    Raises:
        InvalidInputError: it cannot; the message names the field (code `tensor_degree`).
    """
    if tp < 1:
        _refuse(tp, "is below its limit of 1", "choose a positive degree")
    if tp > config.num_key_value_heads:
        _refuse(
            tp,
            f"is above its limit of num_key_value_heads = {config.num_key_value_heads}",
            "a tensor degree beyond key/value heads is not supported yet, choose a smaller one",
        )
    for name in ("num_key_value_heads", "num_attention_heads"):
        if getattr(config, name) % tp:
            _refuse(tp, f"does not divide {name} = {getattr(config, name)}", "choose a divisor")
    for name in ("vocab_size", "intermediate_size"):
        if getattr(config, name) < tp:
            _refuse(tp, f"is above its limit of {name} = {getattr(config, name)}", "choose a smaller degree")


def apply_tensor_parallel(
    model: Decoder, group: dist.ProcessGroup | None, tensor_rank: int, tp: int
) -> list[RemovableHandle]:
    """Hook the collectives on a decoder or a stage of one; its weights are sliced by the caller.

    The forward then takes tokens_T (all of them) if there is an embedding, else hidden_tH, and returns
    logits_Tv if there is a head, else hidden_tH. The segments stay those of all T tokens.

    Args:
        model: whole or cut; weights may be sliced before or after, along `split_dim` by `split_range`.
        group: the tp ranks, in the order of their slices; None if tp is 1.
        tensor_rank: this rank's place in the group.
        tp: the size of the group.

    Returns:
        A handle per hook; removing them all undoes this call. Empty if tp is 1.

    Raises:
        InvalidInputError: the model cannot be split so (code `tensor_degree`).
    """
    check_tensor_degree(model.config, tp)
    if tp == 1:
        return []
    tokens = _TokenHooks(group)
    handles = []
    for layer in model.layers.values():
        for block in (layer.get_submodule("self_attn"), layer.get_submodule("mlp")):
            handles.append(block.register_forward_pre_hook(tokens.gather_input))
            handles.append(block.register_forward_hook(tokens.reduce_output))
    if model.embed_tokens is not None:
        vocabulary = _VocabularyHooks(split_range(model.config.vocab_size, tp, tensor_rank), group)
        handles.append(model.embed_tokens.register_forward_pre_hook(vocabulary.keep_own_rows))
        handles.append(model.embed_tokens.register_forward_hook(vocabulary.reduce_output))
    if model.lm_head is not None:
        handles.append(model.lm_head.register_forward_pre_hook(tokens.gather_input))
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


class _VocabularyHooks:
    """Looks up this rank's rows; a token of another rank's row gives zeros here."""

    def __init__(self, rows: range, group: dist.ProcessGroup | None) -> None:
        self.rows = rows
        self.group = group

    def keep_own_rows(self, _module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        (tokens_T,) = args
        # Kept for the hook after the lookup, which is handed the changed tokens only.
        self.foreign_T = (tokens_T < self.rows.start) | (tokens_T >= self.rows.stop)
        return ((tokens_T - self.rows.start).masked_fill(self.foreign_T, 0),)

    def reduce_output(self, _module: nn.Module, _args: tuple[Any, ...], y_TH: Tensor) -> Tensor:
        own_TH = y_TH.masked_fill(self.foreign_T[:, None], 0)
        return reduce_scatter_tokens(own_TH, self.group)


def _refuse(tp: int, cause: str, remedy: str) -> None:
    message = f"tensor degree tp = {tp} {cause}; {remedy}"
    raise InvalidInputError(message, code="tensor_degree")
