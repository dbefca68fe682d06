"""Attention on CUDA: FlashAttention-2, in torch's own build or from the flash-attn package.

Both take the segments of all sequences in one launch, as cumulative lengths. torch's ops are those under
`torch.nn.attention.varlen` (torch 2.13), which cannot be used itself: its backward takes no log-sum-exp of
others' keys. They were checked against torch's shape functions, and not yet run on a device.

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
# What the kernels are compiled for (flash_api.cpp of both libraries).
_OLDEST_CAPABILITY = (8, 0)
_LARGEST_HEAD_DIM = 256
_HEAD_DIM_MULTIPLE = 8
# Of flash-attn: since then its functions take these arguments.
_OLDEST_PACKAGE = (2, 7)


class TorchFlash:
    """`aten::_flash_attention_forward` and its backward."""

    name = "torch's flash attention"
    kind: AttentionKind = "torch-flash"

    def refusal(self, q_TND: Tensor) -> str | None:
        """Refuse what FlashAttention-2 cannot compute."""
        return _refusal(q_TND)

    def forward(self, heads: Heads, mask: AttentionMask) -> Attended:
        """Attend, all segments in one launch."""
        o_TND, log_sum_exp_NT, *_ = torch.ops.aten._flash_attention_forward(
            *heads, *_boundaries(mask), _NO_DROPOUT, mask.causal, return_debug_mask=False
        )
        return Attended(o_TND, _without_keys(log_sum_exp_NT, mask).T.contiguous())

    def backward(self, do_TND: Tensor, heads: Heads, attended: Attended, mask: AttentionMask) -> Heads:
        """Give the gradients of the heads, all segments in one launch."""
        device = do_TND.device
        # The state of a dropout that does not take place, as torch.nn.attention.varlen passes it.
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
    """The flash-attn package, 2.7 or later, where it is installed."""

    name = "flash-attn"
    kind: AttentionKind = "flash-attn"

    def refusal(self, q_TND: Tensor) -> str | None:
        """Refuse what FlashAttention-2 cannot compute, and everything where the package is missing."""
        if not _package_is_installed():
            return f"the package flash-attn, {'.'.join(map(str, _OLDEST_PACKAGE))} or later, is not installed"
        return _refusal(q_TND)

    def forward(self, heads: Heads, mask: AttentionMask) -> Attended:
        """Attend, all segments in one launch."""
        o_TND, log_sum_exp_NT, *_ = _package()._flash_attn_varlen_forward(
            *heads, *_boundaries(mask), _NO_DROPOUT, _scale(heads), causal=mask.causal
        )
        return Attended(o_TND, _without_keys(log_sum_exp_NT, mask).T.contiguous())

    def backward(self, do_TND: Tensor, heads: Heads, attended: Attended, mask: AttentionMask) -> Heads:
        """Give the gradients of the heads, all segments in one launch."""
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
    # By its name, not by its folder: flash-attn-4 has other functions in a folder of the same name.
    try:
        version = metadata.version("flash-attn")
    except metadata.PackageNotFoundError:
        return False
    return tuple(map(int, re.findall(r"\d+", version)[:2])) >= _OLDEST_PACKAGE


def _package() -> Any:
    # Not at the top: it is no dependency, and its import loads a CUDA library.
    return importlib.import_module("flash_attn.flash_attn_interface")


def _refusal(q_TND: Tensor) -> str | None:
    head_dim = q_TND.shape[-1]
    if q_TND.device.type != "cuda":
        return "it runs on cuda"
    if q_TND.dtype not in _DTYPES:
        return "it takes bfloat16 and float16"
    if head_dim > _LARGEST_HEAD_DIM or head_dim % _HEAD_DIM_MULTIPLE:
        return f"it takes head dims that are multiples of {_HEAD_DIM_MULTIPLE} up to {_LARGEST_HEAD_DIM}"
    if torch.cuda.get_device_capability(q_TND.device) < _OLDEST_CAPABILITY:
        return "it needs a device of compute capability 8.0"
    return None


def _boundaries(mask: AttentionMask) -> tuple[Tensor, Tensor, int, int]:
    """Give where segments begin, of queries and of keys, and how long the longest are, or a bound of it."""
    queries, keys = mask.queries, mask.keys
    # Of 1 both libraries conclude that no segment is empty, and lay grouped queries out by segment; torch's
    # build the log-sum-exps too (seqlenq_ngroups_swapped in flash_api.cpp).
    return queries.boundary, keys.boundary, max(2, queries.longest), keys.longest


def _without_keys(log_sum_exp_NT: Tensor, mask: AttentionMask) -> Tensor:
    """Say minus infinity for queries that see no key, where FlashAttention-2 says plus infinity."""
    if 0 not in mask.keys.lengths:
        return log_sum_exp_NT
    return log_sum_exp_NT.masked_fill(log_sum_exp_NT == math.inf, -math.inf)


def _scale(heads: Heads) -> float:
    return float(heads.q_TND.shape[-1] ** -0.5)
