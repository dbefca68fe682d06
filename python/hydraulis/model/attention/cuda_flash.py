"""Attention on CUDA: FlashAttention-2, in torch's own build or from the flash-attn package.

Both libraries compute the segments of all sequences in one launch, given as cumulative lengths. The torch ops
are those below `torch.nn.attention.varlen` (torch 2.13). That function does not fit, because its backward
does not accept a log-sum-exp over further keys. Torch's build has run on devices, the package not yet.

FlashAttention-2: Dao, arXiv:2307.08691.
"""

import functools
import importlib
import math
import re
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

from hydraulis.config.kinds import AttentionKind
from hydraulis.model.attention.kernel import Attended, AttentionMask, Heads

_DTYPES = (torch.bfloat16, torch.float16)
_NO_DROPOUT = 0.0
# Limits of the compiled kernels (flash_api.cpp of both libraries).
_OLDEST_CAPABILITY = (8, 0)
_LARGEST_HEAD_DIM = 256
_HEAD_DIM_MULTIPLE = 8
# First version of flash-attn whose functions accept these arguments.
_OLDEST_PACKAGE = (2, 7)


class TorchFlash:
    """`aten::_flash_attention_forward` and its backward."""

    name = "torch's flash attention"
    kind: AttentionKind = "torch-flash"

    def refusal(self, q_TND: Tensor) -> str | None:
        """Return the limit of FlashAttention-2 that the heads exceed."""
        return _refusal(q_TND)

    def forward(self, heads: Heads, mask: AttentionMask) -> Attended:
        """Attend in one launch for all segments."""
        o_TND, log_sum_exp_NT, *_ = torch.ops.aten._flash_attention_forward(
            *heads, *_boundaries(mask), _NO_DROPOUT, mask.causal, return_debug_mask=False
        )
        return Attended(o_TND, _without_keys(log_sum_exp_NT, mask).T.contiguous())

    def backward(self, do_TND: Tensor, heads: Heads, attended: Attended, mask: AttentionMask) -> Heads:
        """Return the gradients of the heads from one launch for all segments."""
        device = do_TND.device
        # The random state of the unused dropout, as torch.nn.attention.varlen passes it.
        random_state = torch.zeros(2, dtype=torch.uint64, device=device)
        gradients = torch.ops.aten._flash_attention_backward(
            do_TND.contiguous(),
            *heads,
            attended.o_TND,
            attended.log_sum_exp_TN.T.contiguous(),
            *_boundaries(mask),
            _NO_DROPOUT,
            mask.causal,
            random_state,
            torch.empty(0, device=device),
        )
        return Heads(*gradients)


class FlashAttnPackage:
    """The flash-attn package, 2.7 or later, if it is installed."""

    name = "flash-attn"
    kind: AttentionKind = "flash-attn"

    def refusal(self, q_TND: Tensor) -> str | None:
        """Return the exceeded limit of FlashAttention-2, and that the package is missing."""
        oldest = ".".join(map(str, _OLDEST_PACKAGE))
        missing = f"the package flash-attn, {oldest} or later, is not installed"
        refusals = [_refusal(q_TND), None if _package_is_installed() else missing]
        return ", and ".join(filter(None, refusals)) or None

    def forward(self, heads: Heads, mask: AttentionMask) -> Attended:
        """Attend in one launch for all segments."""
        o_TND, log_sum_exp_NT, *_ = _package()._flash_attn_varlen_forward(
            *heads, *_boundaries(mask), _NO_DROPOUT, _scale(heads), causal=mask.causal
        )
        return Attended(o_TND, _without_keys(log_sum_exp_NT, mask).T.contiguous())

    def backward(self, do_TND: Tensor, heads: Heads, attended: Attended, mask: AttentionMask) -> Heads:
        """Return the gradients of the heads from one launch for all segments."""
        gradients = Heads(*(torch.empty_like(x, memory_format=torch.contiguous_format) for x in heads))
        _package()._flash_attn_varlen_backward(
            do_TND.contiguous(),
            *heads,
            attended.o_TND,
            attended.log_sum_exp_TN.T.contiguous(),
            *gradients,
            *_boundaries(mask),
            _NO_DROPOUT,
            _scale(heads),
            causal=mask.causal,
            window_size_left=-1,
            window_size_right=-1,
            softcap=0.0,
            alibi_slopes=None,
            deterministic=torch.are_deterministic_algorithms_enabled(),
        )
        return gradients


@functools.cache
def _package_is_installed() -> bool:
    # By distribution name: flash-attn-4 has other functions in a folder of the same name.
    try:
        version = metadata.version("flash-attn")
    except metadata.PackageNotFoundError:
        return False
    return tuple(map(int, re.findall(r"\d+", version)[:2])) >= _OLDEST_PACKAGE


def _package() -> Any:
    # Imported here, because it is no dependency and its import loads a CUDA library.
    return importlib.import_module("flash_attn.flash_attn_interface")


def _refusal(q_TND: Tensor) -> str | None:
    head_dim = q_TND.shape[-1]
    if q_TND.device.type != "cuda":
        return "it runs on cuda only"
    if q_TND.dtype not in _DTYPES:
        return "it supports bfloat16 and float16 only"
    if head_dim > _LARGEST_HEAD_DIM or head_dim % _HEAD_DIM_MULTIPLE:
        return f"it supports head dims that are multiples of {_HEAD_DIM_MULTIPLE} up to {_LARGEST_HEAD_DIM}"
    if torch.cuda.get_device_capability(q_TND.device) < _OLDEST_CAPABILITY:
        return "it needs a device of compute capability 8.0 or later"
    return None


def _boundaries(mask: AttentionMask) -> tuple[Tensor, Tensor, int, int]:
    """Return the boundaries of query and key segments, and bounds of the longest segments."""
    queries, keys = mask.queries, mask.keys
    # At least 2: from a longest query segment of 1 both libraries conclude that no segment is empty, and
    # group queries by segment; torch's build then groups the log-sum-exps too (seqlenq_ngroups_swapped in
    # flash_api.cpp).
    return queries.boundary, keys.boundary, max(2, queries.longest), keys.longest


def _without_keys(log_sum_exp_NT: Tensor, mask: AttentionMask) -> Tensor:
    """Replace FlashAttention-2's plus infinity by minus infinity for queries without visible keys."""
    if 0 not in mask.keys.lengths:
        return log_sum_exp_NT
    return log_sum_exp_NT.masked_fill(log_sum_exp_NT == math.inf, -math.inf)


def _scale(heads: Heads) -> float:
    return float(heads.q_TND.shape[-1] ** -0.5)
