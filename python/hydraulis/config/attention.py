"""The attention kernels, as configurations name them."""

from typing import Literal, TypeAlias

AttentionKind: TypeAlias = Literal["auto", "flash-attn", "torch-flash", "plain", "cpu-flash"]
"""Which kernel computes attention.

`flash-attn` is the package of that name, `torch-flash` torch's own build of FlashAttention-2, both on CUDA in
half precision; `plain` runs anywhere, more slowly; `cpu-flash` is torch's kernel for the CPU. `auto` takes
the best of them that the device and the type admit.
"""
