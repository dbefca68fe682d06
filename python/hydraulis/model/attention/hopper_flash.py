"""Attention on CUDA devices since Hopper: the packages FlashAttention-3 and FlashAttention-4.

Both compute the segments of all sequences in one launch, given as cumulative lengths, and return the natural
log-sum-exp as [N, T]. The called functions are those below the packages' own autograd functions, which do not
accept a log-sum-exp over further keys. The calls are checked against the packages' sources
(FlashAttention-3 3.0.0, FlashAttention-4 4.0.0b19 and 4.0.0b36) and have not run on a device yet.

Neither package states its results for a query segment without keys, or for a key segment without queries.
This module sets them.

FlashAttention-3: Shah et al., arXiv:2407.08608.
"""

import functools
import importlib
import math
import re
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

from hydraulis.config.kinds import AttentionKind
from hydraulis.model.attention.kernel import Attended, AttentionMask, Heads, Segments

_DTYPES = (torch.bfloat16, torch.float16)
_HEAD_DIM_MULTIPLE = 8
_HOPPER, _BLACKWELL = 9, 10
# Largest head dim of each generation of devices, by FlashAttention-4's `_validate_head_dims`.
_LARGEST_HEAD_DIM = {_HOPPER: 256, _BLACKWELL: 128}
# The first versions whose functions take these arguments.
_OLDEST_3 = "3.0.0"
_OLDEST_4 = "4.0.0b19"


class FlashAttention3:
    """The package flash_attn_3, built from FlashAttention's folder `hopper`, if it is installed."""

    name = "flash-attn-3"
    kind: AttentionKind = "flash-attn-3"

    def refusal(self, q_TND: Tensor) -> str | None:
        """Return the exceeded limit of FlashAttention-3, or that the package is missing."""
        return _missing("flash_attn_3", _OLDEST_3) or _refusal(q_TND, (_HOPPER,))

    def forward(self, heads: Heads, mask: AttentionMask) -> Attended:
        """Attend in one launch for all segments."""
        package = importlib.import_module("flash_attn_interface")
        o_TND, log_sum_exp_NT, *_ = package._flash_attn_forward(
            *heads, **_segments(heads, mask), causal=mask.causal
        )
        return _attended(o_TND, log_sum_exp_NT, mask)

    def backward(self, do_TND: Tensor, heads: Heads, attended: Attended, mask: AttentionMask) -> Heads:
        """Return the gradients of the heads from one launch for all segments."""
        package = importlib.import_module("flash_attn_interface")
        dq_TND, dk_SKD, dv_SKD = gradients = _empty_gradients(heads)
        package._flash_attn_backward(
            do_TND.contiguous(),
            *heads,
            attended.o_TND,
            attended.log_sum_exp_TN.T.contiguous(),
            **_segments(heads, mask),
            is_causal=mask.causal,
            deterministic=torch.are_deterministic_algorithms_enabled(),
            dq=dq_TND,
            dk=dk_SKD,
            dv=dv_SKD,
        )
        return _without_pairs_zero(gradients, mask)


class FlashAttention4:
    """The package flash-attn-4, if it is installed; it compiles a kernel at its first launch."""

    name = "flash-attn-4"
    kind: AttentionKind = "flash-attn-4"

    def refusal(self, q_TND: Tensor) -> str | None:
        """Return the exceeded limit of FlashAttention-4, or that the package is missing."""
        return _missing("flash-attn-4", _OLDEST_4) or _refusal(q_TND, (_HOPPER, _BLACKWELL))

    def forward(self, heads: Heads, mask: AttentionMask) -> Attended:
        """Attend in one launch for all segments."""
        package = importlib.import_module("flash_attn.cute.interface")
        o_TND, log_sum_exp_NT, *_ = package._flash_attn_fwd(
            *heads, **_segments(heads, mask), causal=mask.causal, return_lse=True
        )
        return _attended(o_TND, log_sum_exp_NT, mask)

    def backward(self, do_TND: Tensor, heads: Heads, attended: Attended, mask: AttentionMask) -> Heads:
        """Return the gradients of the heads from one launch for all segments."""
        package = importlib.import_module("flash_attn.cute.interface")
        dq_TND, dk_SKD, dv_SKD = gradients = _empty_gradients(heads)
        package._flash_attn_bwd(
            *heads,
            attended.o_TND,
            do_TND.contiguous(),
            attended.log_sum_exp_TN.T.contiguous(),
            **_segments(heads, mask),
            causal=mask.causal,
            deterministic=torch.are_deterministic_algorithms_enabled(),
            dq=dq_TND,
            dk=dk_SKD,
            dv=dv_SKD,
        )
        return _without_pairs_zero(gradients, mask)


def _missing(distribution: str, oldest: str) -> str | None:
    if _is_installed(distribution, oldest):
        return None
    return f"the package {distribution}, {oldest} or later, is not installed"


@functools.cache
def _is_installed(distribution: str, oldest: str) -> bool:
    # By distribution name: the packages share folder names with others.
    try:
        version = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return _numbers(version) >= _numbers(oldest)


def _numbers(version: str) -> list[float]:
    """Return the numbers of a version, such as 4.0.0b19; a release follows its betas."""
    release, beta, *_ = [*re.split("b", version.partition("+")[0]), ""]
    return [*map(float, re.findall(r"\d+", release)[:3]), float(beta or math.inf)]


def _refusal(q_TND: Tensor, generations: Sequence[int]) -> str | None:
    if q_TND.device.type != "cuda":
        return "it runs on cuda only"
    if q_TND.dtype not in _DTYPES:
        return "it supports bfloat16 and float16 only"
    generation, _ = torch.cuda.get_device_capability(q_TND.device)
    if generation not in generations:
        return f"it needs a device of compute capability {' or '.join(f'{one}.x' for one in generations)}"
    head_dim, largest = q_TND.shape[-1], _LARGEST_HEAD_DIM[generation]
    if head_dim > largest or head_dim % _HEAD_DIM_MULTIPLE:
        return f"it supports head dims that are multiples of {_HEAD_DIM_MULTIPLE} up to {largest}"
    return None


def _segments(heads: Heads, mask: AttentionMask) -> dict[str, Any]:
    """Return the arguments that both packages have in common."""
    return {
        "cu_seqlens_q": mask.queries.boundary,
        "cu_seqlens_k": mask.keys.boundary,
        "max_seqlen_q": mask.queries.longest,
        "max_seqlen_k": mask.keys.longest,
        "softmax_scale": float(heads.q_TND.shape[-1] ** -0.5),
    }


def _attended(o_TND: Tensor, log_sum_exp_NT: Tensor, mask: AttentionMask) -> Attended:
    attended = Attended(o_TND, log_sum_exp_NT.T.contiguous())
    for rows in _unpaired(mask.queries, mask.keys):
        attended.o_TND[rows] = 0
        attended.log_sum_exp_TN[rows] = -math.inf
    return attended


def _empty_gradients(heads: Heads) -> Heads:
    return Heads(*(torch.empty_like(x, memory_format=torch.contiguous_format) for x in heads))


def _without_pairs_zero(gradients: Heads, mask: AttentionMask) -> Heads:
    """Zero the gradients of queries without keys, and of keys without queries."""
    for rows in _unpaired(mask.queries, mask.keys):
        gradients.q_TND[rows] = 0
    for rows in _unpaired(mask.keys, mask.queries):
        gradients.k_SKD[rows] = 0
        gradients.v_SKD[rows] = 0
    return gradients


def _unpaired(segments: Segments, others: Segments) -> Iterator[slice]:
    """Yield the rows of each non-empty segment whose counterpart is empty."""
    start = 0
    for length, other in zip(segments.lengths, others.lengths, strict=True):
        if length and not other:
            yield slice(start, start + length)
        start += length
