"""Causal attention over packed sequences that never crosses from one segment into another.

One kernel call per segment, on views, written into outputs allocated once. Slicing under autograd instead
would make each segment's backward zero-fill a tensor of all T tokens: 1,462 ms instead of 59 ms for 128
segments of 64 tokens (8 heads of 64, one thread). Batching runs of equal lengths gained nothing on 37
segments and 9,216 tokens (1.09 s against 1.11 s, forward and backward), so it is not done.

It runs on CPU only, in float64, float32 and bfloat16, without dropout.

Legend: T tokens of the packed micro-batch, N query heads, K key/value heads, D head dim.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hydraulis.errors import InvalidInputError
from hydraulis.model.packed import PackedSequences

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
_NO_DROPOUT = 0.0


def varlen_attention(q_TND: Tensor, k_TKD: Tensor, v_TKD: Tensor, sequences: PackedSequences) -> Tensor:
    """Attend causally inside each segment; query head n uses key/value head `n // (N / K)`.

    Args:
        q_TND: queries, scaled inside by `D ** -0.5`.
        k_TKD: keys; K divides N.
        v_TKD: values.
        sequences: the segments; together they hold exactly T tokens.

    Returns:
        o_TND, contiguous, in the dtype of the queries.

    Raises:
        InvalidInputError: no kernel for the device (code `attention_device`), or the tensors do not hold
            the tokens of `sequences`, or D is not contiguous (code `attention_shape`).
    """
    for name, x in (("q_TND", q_TND), ("k_TKD", k_TKD), ("v_TKD", v_TKD)):
        _check(name, x, sequences.num_tokens)
    return _attend(q_TND, k_TKD, v_TKD, sequences.lengths)


class _VarlenAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q_TND: Tensor, k_TKD: Tensor, v_TKD: Tensor, lengths: tuple[int, ...]) -> Tensor:
        o_TND = torch.empty(q_TND.shape, dtype=q_TND.dtype, device=q_TND.device)
        wide = torch.promote_types(q_TND.dtype, torch.float32)
        log_sum_exp_TN = torch.empty(q_TND.shape[:2], dtype=wide, device=q_TND.device)
        segments = (torch.split(x, list(lengths)) for x in (q_TND, k_TKD, v_TKD, o_TND, log_sum_exp_TN))
        for q, k, v, o, log_sum_exp in zip(*segments, strict=True):
            segment_o, segment_log_sum_exp = _forward(
                _heads_first(q), _heads_first(k), _heads_first(v), _NO_DROPOUT, is_causal=True
            )
            _heads_first(o).copy_(segment_o)
            _heads_first(log_sum_exp).copy_(segment_log_sum_exp)
        ctx.save_for_backward(q_TND, k_TKD, v_TKD, o_TND, log_sum_exp_TN)
        ctx.lengths = lengths
        return o_TND

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do_TND: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        inputs = (do_TND, *saved)
        grads = tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in saved[:3])
        segments = zip(*(torch.split(x, list(ctx.lengths)) for x in (*inputs, *grads)), strict=True)
        for do, q, k, v, o, log_sum_exp, *segment_grads in segments:
            values = _backward(
                *(_heads_first(x) for x in (do, q, k, v, o, log_sum_exp)), _NO_DROPOUT, is_causal=True
            )
            for grad, value in zip(segment_grads, values, strict=True):
                _heads_first(grad).copy_(value)
        return (*grads, None)


_attend: Callable[[Tensor, Tensor, Tensor, tuple[int, ...]], Tensor] = _VarlenAttention.apply


def _heads_first(x: Tensor) -> Tensor:
    """View [L, N, ...] of one segment as the [1, N, L, ...] that the kernel takes."""
    return x.transpose(0, 1)[None]


def _check(name: str, x: Tensor, num_tokens: int) -> None:
    if x.device.type != "cpu":
        message = f"{name} is on device {x.device}, but attention runs on cpu only; move the model to cpu"
        raise InvalidInputError(message, code="attention_device")
    if x.shape[0] != num_tokens:
        message = (
            f"{name} holds {x.shape[0]} tokens, but its segments hold {num_tokens}; "
            "pass the PackedSequences of this very micro-batch"
        )
        raise InvalidInputError(message, code="attention_shape")
    if x.stride(-1) != 1:
        # The kernel assumes it and returns NaN otherwise (torch 2.13).
        message = f"{name} has stride {x.stride(-1)} in its last dim, the limit is 1; call contiguous() on it"
        raise InvalidInputError(message, code="attention_shape")
