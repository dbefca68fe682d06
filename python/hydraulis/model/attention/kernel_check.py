"""Compares an attention kernel with plain attention on the device of a rank, before the run starts.

Kernels of packages are compiled for a device, a head dim and a number of query heads for each key/value head,
and a version can be wrong for one of them alone: FlashAttention-4 4.0.0b36 gave an H100 wrong gradients for
heads of 16 elements, of every segment but the first. A run would only learn worse.

Legend: T query tokens, N query heads, D head dim.
"""

import torch
from torch import Tensor

from hydraulis.errors import HydraulisError
from hydraulis.model.attention.kernel import AttentionKernel, AttentionMask, Heads, Segments
from hydraulis.model.attention.plain import PlainAttention

# Shorter and longer than the tiles of all kernels, and some that start within a tile.
_LENGTHS = (130, 1, 70, 300, 20)
# Rounding to bfloat16 gives relative distances near 0.01; a part computed wrongly is about 1 off.
_MOST_DISTANCE = 0.1


def check_kernel(
    kernel: AttentionKernel,
    num_heads: int,
    num_key_value_heads: int,
    like_TND: Tensor,
    *,
    between_segments: bool,
) -> None:
    """Attend and differentiate a small micro-batch by the kernel and by plain attention.

    Args:
        kernel: Kernel of the run.
        num_heads: Query heads of the model.
        num_key_value_heads: Key/value heads of the model.
        like_TND: Queries with the head dim, the dtype and the device of the run.
        between_segments: Whether context ranks attend to the segments of others, without a causal mask.

    Raises:
        HydraulisError: A result is more than 10 % off (code `attention_wrong`).
    """
    segments = Segments.from_lengths(_LENGTHS, like_TND.device)
    masks = [AttentionMask(segments, segments, causal=True)]
    if between_segments:
        others = Segments.from_lengths(_LENGTHS[::-1], like_TND.device)
        masks.append(AttentionMask(segments, others, causal=False))
    group = num_heads // num_key_value_heads
    for mask in masks:
        heads = _draw_heads(mask, group, like_TND)
        for name, distance in _distances(kernel, heads, mask).items():
            if not distance <= _MOST_DISTANCE:
                message = (
                    f"the attention kernel {kernel.name} gives other {name} than plain attention for heads "
                    f"of dim {like_TND.shape[-1]} in groups of {group} on {like_TND.device}: {distance:.0%} "
                    f"off, the limit is {_MOST_DISTANCE:.0%}; install another version of its package, or set "
                    "train.attention to another kernel, such as 'torch-flash'"
                )
                raise HydraulisError(message, code="attention_wrong")


def _draw_heads(mask: AttentionMask, group: int, like_TND: Tensor) -> Heads:
    """Draw heads of two groups, by a generator of their own."""
    generator = torch.Generator(like_TND.device).manual_seed(0)

    def draw(num_tokens: int, num_heads: int) -> Tensor:
        shape = (num_tokens, num_heads, like_TND.shape[-1])
        return torch.randn(shape, generator=generator, dtype=like_TND.dtype, device=like_TND.device)

    return Heads(
        draw(mask.queries.num_tokens, 2 * group), draw(mask.keys.num_tokens, 2), draw(mask.keys.num_tokens, 2)
    )


def _distances(kernel: AttentionKernel, heads: Heads, mask: AttentionMask) -> dict[str, float]:
    """Return the relative distances of the output and of each gradient."""
    do_TND = heads.q_TND.flip(0)
    results = []
    for one in (kernel, PlainAttention()):
        attended = one.forward(heads, mask)
        results.append((attended.o_TND, *one.backward(do_TND, heads, attended, mask)))
    names = ("outputs", "gradients of queries", "gradients of keys", "gradients of values")
    return {
        name: float((found.double() - expected.double()).norm() / expected.double().norm())
        for name, found, expected in zip(names, *results, strict=True)
    }
