"""Attention on CUDA devices since Hopper: the packages FlashAttention-3 and FlashAttention-4.

Both compute the segments of all sequences in one launch, given as cumulative lengths, and return the natural
log-sum-exp as [N, T]. The called functions are those below the packages' own autograd functions, which do not
accept a log-sum-exp over further keys. The calls are checked against the packages' sources
(FlashAttention-3 3.0.0, FlashAttention-4 4.0.0b19 and 4.0.0b36). On a device only FlashAttention-4 4.0.0b36
has run: right for heads of 64 and 128 elements; its gradients were wrong for heads of 16 (`_LARGEST_WRONG`).

Neither package states its results for a query segment without keys, or for a key segment without queries.
This module sets them.

FlashAttention-3: Shah et al., arXiv:2407.08608.
"""

import functools
import importlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

from hydraulis.config.kinds import AttentionKind
from hydraulis.model.attention.kernel import Attended, AttentionMask, Heads, Segments

_DTYPES = (torch.bfloat16, torch.float16)
_HEAD_DIM_MULTIPLE = 8
_HOPPER, _BLACKWELL = 9, 10
# FlashAttention-4 rounds head dims up for its sums of gradients: to multiples of 16 in flash_bwd_sm90.py, and
# of 32 in interface.py, so every segment but the first is summed in a wrong place (4.0.0b36, also seen on an
# H100). Above 128 both round to multiples of 64.
_LARGEST_WRONG = 128
# Largest head dim of each generation of devices, by FlashAttention-4's `_validate_head_dims`.
_LARGEST_HEAD_DIM = {_HOPPER: 256, _BLACKWELL: 128}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageKernel:
    """A kernel that launches two functions of a package, if the package is installed.

    Attributes:
        kind: Name of the kernel, in configurations and messages.
        distribution: Name of the package's distribution.
        oldest: First version whose functions take these arguments.
        module: Name of the module of the functions.
        generations: Major compute capabilities of the devices on which the kernel runs.
        has_wrong_dims: Whether the backward on Hopper is wrong for some head dims.
        launch_forward: Function of the module, the heads and the mask; returns the output [T, N, D] and the
            natural log-sum-exp [N, T], and perhaps more.
        launch_backward: Function of the module, the contiguous gradient of the output, the heads, the result
            with the log-sum-exp as [N, T], the mask, and the gradients, which it writes.
    """

    kind: AttentionKind
    distribution: str
    oldest: str
    module: str
    generations: Sequence[int]
    has_wrong_dims: bool
    launch_forward: Callable[[Any, Heads, AttentionMask], Sequence[Tensor]]
    launch_backward: Callable[[Any, Tensor, Heads, Attended, AttentionMask, Heads], object]

    @property
    def name(self) -> str:
        """Name of the kernel in messages."""
        return self.kind

    def refusal(self, q_TND: Tensor) -> str | None:
        """Return the exceeded limit of the kernel, and that the package is missing."""
        refusal = _refusal(q_TND, self.generations, has_wrong_dims=self.has_wrong_dims)
        return ", and ".join(filter(None, [refusal, _missing(self.distribution, self.oldest)])) or None

    def forward(self, heads: Heads, mask: AttentionMask) -> Attended:
        """Attend in one launch for all segments."""
        package = importlib.import_module(self.module)
        o_TND, log_sum_exp_NT, *_ = self.launch_forward(package, heads, mask)
        attended = Attended(o_TND, log_sum_exp_NT.T.contiguous())
        for rows in _unpaired(mask.queries, mask.keys):
            attended.o_TND[rows] = 0
            attended.log_sum_exp_TN[rows] = -math.inf
        return attended

    def backward(self, do_TND: Tensor, heads: Heads, attended: Attended, mask: AttentionMask) -> Heads:
        """Return the gradients of the heads from one launch for all segments."""
        package = importlib.import_module(self.module)
        gradients = Heads(*(torch.empty_like(x, memory_format=torch.contiguous_format) for x in heads))
        transposed = Attended(attended.o_TND, attended.log_sum_exp_TN.T.contiguous())
        self.launch_backward(package, do_TND.contiguous(), heads, transposed, mask, gradients)
        for rows in _unpaired(mask.queries, mask.keys):
            gradients.q_TND[rows] = 0
        for rows in _unpaired(mask.keys, mask.queries):
            gradients.k_SKD[rows] = 0
            gradients.v_SKD[rows] = 0
        return gradients


def _forward_3(package: Any, heads: Heads, mask: AttentionMask) -> Any:
    return package._flash_attn_forward(*heads, **_segments(heads, mask), causal=mask.causal)


def _backward_3(
    package: Any, do_TND: Tensor, heads: Heads, attended: Attended, mask: AttentionMask, gradients: Heads
) -> None:
    options = _segments(heads, mask) | _outputs(gradients)
    package._flash_attn_backward(do_TND, *heads, *attended, **options, is_causal=mask.causal)


def _forward_4(package: Any, heads: Heads, mask: AttentionMask) -> Any:
    return package._flash_attn_fwd(*heads, **_segments(heads, mask), causal=mask.causal, return_lse=True)


def _backward_4(
    package: Any, do_TND: Tensor, heads: Heads, attended: Attended, mask: AttentionMask, gradients: Heads
) -> None:
    o_TND, log_sum_exp_NT = attended
    options = _segments(heads, mask) | _outputs(gradients)
    package._flash_attn_bwd(*heads, o_TND, do_TND, log_sum_exp_NT, **options, causal=mask.causal)


# Built from FlashAttention's folder `hopper`.
FLASH_ATTENTION_3 = PackageKernel(
    kind="flash-attn-3",
    distribution="flash_attn_3",
    oldest="3.0.0",
    module="flash_attn_interface",
    generations=(_HOPPER,),
    has_wrong_dims=False,
    launch_forward=_forward_3,
    launch_backward=_backward_3,
)
# Compiles a kernel at its first launch.
FLASH_ATTENTION_4 = PackageKernel(
    kind="flash-attn-4",
    distribution="flash-attn-4",
    oldest="4.0.0b19",
    module="flash_attn.cute.interface",
    generations=(_HOPPER, _BLACKWELL),
    has_wrong_dims=True,
    launch_forward=_forward_4,
    launch_backward=_backward_4,
)


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


def _refusal(q_TND: Tensor, generations: Sequence[int], *, has_wrong_dims: bool) -> str | None:
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
    if has_wrong_dims and generation == _HOPPER and head_dim <= _LARGEST_WRONG and 0 < head_dim % 32 <= 16:
        return f"on Hopper its gradients are wrong for head dims such as {head_dim}: at most 16 above 32 x n"
    return None


def _segments(heads: Heads, mask: AttentionMask) -> dict[str, Any]:
    """Return the arguments of all four functions that describe the segments."""
    return {
        "cu_seqlens_q": mask.queries.boundary,
        "cu_seqlens_k": mask.keys.boundary,
        "max_seqlen_q": mask.queries.longest,
        "max_seqlen_k": mask.keys.longest,
        "softmax_scale": float(heads.q_TND.shape[-1] ** -0.5),
    }


def _outputs(gradients: Heads) -> dict[str, Any]:
    """Return the arguments of both backwards that name the gradients, and whether sums have a fixed order."""
    return {
        "dq": gradients.q_TND,
        "dk": gradients.k_SKD,
        "dv": gradients.v_SKD,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def _unpaired(segments: Segments, others: Segments) -> Iterator[slice]:
    """Yield the rows of each non-empty segment whose counterpart is empty."""
    start = 0
    for length, other in zip(segments.lengths, others.lengths, strict=True):
        if length and not other:
            yield slice(start, start + length)
        start += length
