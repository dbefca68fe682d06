"""Causal attention over packed sequences that never crosses from one segment into another.

Legend: T tokens of the packed micro-batch, N query heads, K key/value heads, D head dim.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hydraulis.config.kinds import AttentionKind
from hydraulis.errors import InvalidInputError
from hydraulis.model.attention.cpu_flash import CpuFlash
from hydraulis.model.attention.cuda_flash import FlashAttnPackage, TorchFlash
from hydraulis.model.attention.kernel import Attended, AttentionKernel, AttentionMask, Heads, check_heads
from hydraulis.model.attention.plain import PlainAttention
from hydraulis.model.segments import Segments

KERNELS: tuple[AttentionKernel, ...] = (FlashAttnPackage(), TorchFlash(), CpuFlash(), PlainAttention())
"""The best first; the last takes anything. A user who installed flash-attn wants it."""


def varlen_attention(
    q_TND: Tensor, k_TKD: Tensor, v_TKD: Tensor, segments: Segments, kind: AttentionKind = "auto"
) -> Tensor:
    """Attend causally inside each segment; query head n uses key/value head `n // (N / K)`.

    Args:
        q_TND: queries, scaled inside by `D ** -0.5`.
        k_TKD: keys; K divides N.
        v_TKD: values.
        segments: together they hold exactly T tokens.
        kind: the kernel, or `auto` for the best that fits.

    Returns:
        o_TND, contiguous, in the dtype of the queries.

    Raises:
        InvalidInputError: no kernel, or not that one, takes such heads (code `attention_unsupported`), or the
            tensors do not hold the tokens of `segments`, or D is not contiguous (code `micro_batch_invalid`).
    """
    mask = AttentionMask(segments, segments, causal=True)
    check_heads(Heads(q_TND, k_TKD, v_TKD), mask)
    return _attend(q_TND, k_TKD, v_TKD, mask, choose_kernel(q_TND, kind))


def choose_kernel(q_TND: Tensor, kind: AttentionKind = "auto") -> AttentionKernel:
    """Take the first kernel that computes such heads on their device, among all or of one kind.

    Raises:
        InvalidInputError: none does; the message says why of each (code `attention_unsupported`).
    """
    refusals = []
    for kernel in (kernel for kernel in KERNELS if kind in ("auto", kernel.kind)):
        refusal = kernel.refusal(q_TND)
        if refusal is None:
            return kernel
        refusals.append(f"{kernel.name}: {refusal}")
    dtype = str(q_TND.dtype).removeprefix("torch.")
    message = (
        f"no attention for {dtype} heads of dim {q_TND.shape[-1]} on {q_TND.device} with train.attention = "
        f"'{kind}' ({'; '.join(refusals)}); change the kernel, the device, the dtype or head_dim"
    )
    raise InvalidInputError(message, code="attention_unsupported")


class _VarlenAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q_TND: Tensor, k_TKD: Tensor, v_TKD: Tensor, mask: AttentionMask, kernel: AttentionKernel
    ) -> Tensor:
        heads = Heads(q_TND, k_TKD, v_TKD)
        attended = kernel.forward(heads, mask)
        ctx.save_for_backward(*heads, *attended)
        ctx.mask, ctx.kernel = mask, kernel
        return attended.o_TND

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do_TND: Tensor) -> tuple[Tensor | None, ...]:
        *heads, o_TND, log_sum_exp_TN = ctx.saved_tensors
        attended = Attended(o_TND, log_sum_exp_TN)
        return (*ctx.kernel.backward(do_TND, Heads(*heads), attended, ctx.mask), None, None)


_attend: Callable[[Tensor, Tensor, Tensor, AttentionMask, AttentionKernel], Tensor] = _VarlenAttention.apply
