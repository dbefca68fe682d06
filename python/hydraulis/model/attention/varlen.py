"""Causal attention inside each segment of packed sequences.

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
from hydraulis.model.attention.hopper_flash import FLASH_ATTENTION_3, FLASH_ATTENTION_4
from hydraulis.model.attention.kernel import (
    Attended,
    AttentionKernel,
    AttentionMask,
    Heads,
    Segments,
    check_heads,
)
from hydraulis.model.attention.plain import PlainAttention

KERNELS: tuple[AttentionKernel, ...] = (
    FLASH_ATTENTION_3,
    FLASH_ATTENTION_4,
    FlashAttnPackage(),
    TorchFlash(),
    CpuFlash(),
    PlainAttention(),
)
"""All kernels by preference. A user who installed a package wants it; plain attention supports any heads."""


def varlen_attention(
    q_TND: Tensor, k_TKD: Tensor, v_TKD: Tensor, segments: Segments, kind: AttentionKind = "auto"
) -> Tensor:
    """Attend causally inside each segment; query head n uses key/value head `n // (N / K)`.

    Args:
        q_TND: Queries, before scaling by `D ** -0.5`.
        k_TKD: Keys; K divides N.
        v_TKD: Values.
        segments: Segments of the T tokens.
        kind: Kernel, or `auto` for the first that supports the heads.

    Returns:
        o_TND, contiguous, in the dtype of the queries.

    Raises:
        InvalidInputError: No kernel of this kind supports the heads (code `attention_unsupported`), the
            segments do not have T tokens, or D is not contiguous (code `micro_batch_invalid`).
    """
    mask = AttentionMask(segments, segments, causal=True)
    check_heads(Heads(q_TND, k_TKD, v_TKD), mask)
    return _attend(q_TND, k_TKD, v_TKD, mask, choose_kernel(q_TND, kind))


def choose_kernel(q_TND: Tensor, kind: AttentionKind = "auto") -> AttentionKernel:
    """Return the first kernel of the given kind that supports the heads on their device.

    Raises:
        InvalidInputError: No kernel does; the message has each kernel's reason (code
            `attention_unsupported`).
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
