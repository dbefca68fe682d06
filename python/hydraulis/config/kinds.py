"""The kinds that configurations, profiles and plans choose among, by name."""

from typing import Literal, TypeAlias

AttentionKind: TypeAlias = Literal["auto", "flash-attn", "torch-flash", "plain", "cpu-flash"]
"""Which kernel computes attention.

`flash-attn` is the package of that name, `torch-flash` torch's own build of FlashAttention-2, both on CUDA in
half precision; `plain` runs anywhere, more slowly; `cpu-flash` is torch's kernel for the CPU. `auto` takes
the best of them that the device and the type admit.
"""

CheckpointingKind: TypeAlias = Literal["none", "selective", "full"]
"""What a decoder layer computes again for its backward pass instead of keeping it.

`none` keeps everything; `selective` keeps attention and the results of matrix products, and computes the
rest, which is cheap, again; `full` keeps the layer's input alone.
"""

ContextKind: TypeAlias = Literal["ulysses", "ring"]
"""How context ranks exchange what attention needs.

`ulysses` exchanges tokens for heads before attention and back after it; `ring` passes keys and values round.
"""

DeviceKind: TypeAlias = Literal["auto", "cpu", "cuda"]
"""What every rank computes on.

`cuda` takes a device of its own for each rank of a node; `auto` is `cuda` where there is any, else `cpu`.
"""

MemoryRule: TypeAlias = Literal["cap", "exact"]
"""How strictly memory limits the micro-batches of a pipeline.

`cap` lets each of them hold what all could at once; `exact` counts those that a pipeline does hold at once.
"""
