"""Attention on the CPU: one call of torch's blockwise kernel per segment.

The calls read views of the inputs and write into outputs that are allocated once. With slicing under
autograd, each segment's backward would zero-fill a tensor of all T tokens: 1,462 ms instead of 59 ms for 128
segments of 64 tokens (8 heads of 64, one thread). Segments of equal length are not batched: batching did not
help on 37 segments and 9,216 tokens (1.09 s against 1.11 s, forward and backward).

The kernel supports float64, float32, bfloat16 and float16, without dropout.

Legend: T query tokens, S key tokens, N query heads, K key/value heads, D head dim.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from hydraulis.config.kinds import AttentionKind
from hydraulis.model.attention.kernel import Attended, AttentionMask, Heads
from hydraulis.model.tensors import wide_dtype

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
_NO_DROPOUT = 0.0


class CpuFlash:
    """`aten::_scaled_dot_product_flash_attention_for_cpu`, which never stores a whole matrix of scores."""

    name = "torch's flash attention for cpu"
    kind: AttentionKind = "cpu-flash"

    def refusal(self, q_TND: Tensor) -> str | None:
        """Return a reason for every device except the CPU."""
        return None if q_TND.device.type == "cpu" else "it runs on cpu only"

    def forward(self, heads: Heads, mask: AttentionMask) -> Attended:
        """Attend segment by segment."""
        q_TND = heads.q_TND
        wide = wide_dtype(q_TND.dtype)
        o_TND = torch.zeros(q_TND.shape, dtype=q_TND.dtype)
        log_sum_exp_TN = torch.full(q_TND.shape[:2], -math.inf, dtype=wide)
        by_query = (q_TND, o_TND, log_sum_exp_TN)
        for q, o, log_sum_exp, k, v in _segments(mask, by_query, heads[1:]):
            values = _forward(q, k, v, _NO_DROPOUT, is_causal=mask.causal)
            o.copy_(values[0])
            log_sum_exp.copy_(values[1])
        return Attended(o_TND, log_sum_exp_TN)

    def backward(self, do_TND: Tensor, heads: Heads, attended: Attended, mask: AttentionMask) -> Heads:
        """Return the gradients of the heads, segment by segment."""
        gradients = Heads(*(torch.zeros(x.shape, dtype=x.dtype) for x in heads))
        by_query = (do_TND, heads.q_TND, *attended, gradients.q_TND)
        by_key = (*heads[1:], *gradients[1:])
        for do, q, o, log_sum_exp, dq, k, v, dk, dv in _segments(mask, by_query, by_key):
            values = _backward(do, q, k, v, o, log_sum_exp, _NO_DROPOUT, is_causal=mask.causal)
            for gradient, value in zip((dq, dk, dv), values, strict=True):
                gradient.copy_(value)
        return gradients


def _segments(
    mask: AttentionMask, by_query: tuple[Tensor, ...], by_key: tuple[Tensor, ...]
) -> Iterator[list[Tensor]]:
    """Yield views of each non-empty segment in the kernel's shape [1, N, L, ...]."""
    query_parts = (torch.split(x, list(mask.queries.lengths)) for x in by_query)
    key_parts = (torch.split(x, list(mask.keys.lengths)) for x in by_key)
    for parts in zip(*query_parts, *key_parts, strict=True):
        if len(parts[0]) and len(parts[-1]):
            yield [part.transpose(0, 1)[None] for part in parts]
