"""Names that configurations, profiles and plans choose from."""

from typing import Literal, TypeAlias

AttentionKind: TypeAlias = Literal[
    "auto", "flash-attn-3", "flash-attn-4", "flash-attn", "torch-flash", "plain", "cpu-flash"
]
"""Kernel that computes attention.

- `flash-attn-3`: the package flash_attn_3, on Hopper in half precision.
- `flash-attn-4`: the package flash-attn-4, on Hopper and Blackwell in half precision.
- `flash-attn`: the package flash-attn, on CUDA in half precision.
- `torch-flash`: torch's own build of FlashAttention-2, on CUDA in half precision.
- `plain`: an implementation in torch operations; slower, on any device.
- `cpu-flash`: torch's kernel for the CPU.
- `auto`: the fastest of them that the device and the type allow.
"""

CheckpointingKind: TypeAlias = Literal["none", "selective", "full", "offload", "full-offload"]
"""Activation checkpointing of a decoder layer: the activations that backward recomputes or copies back.

- `none`: nothing is recomputed; all activations are saved.
- `selective`: everything is recomputed except attention and matrix products, whose results are saved.
- `full`: everything is recomputed from the saved input of the layer.
- `offload`: nothing is recomputed; all activations are saved in host memory, during computation.
- `full-offload`: everything is recomputed from the input of the layer, which is saved in host memory.

A scheme has one kind for all layers, or two kinds in stated numbers of layers (`<tp2,full:12/40>`).
"""

ContextKind: TypeAlias = Literal["ulysses", "ring"]
"""Communication of attention among context-parallel ranks.

- `ulysses`: an all-to-all exchanges tokens for heads before attention, another exchanges them back.
- `ring`: keys and values pass from rank to rank.
"""

DeviceKind: TypeAlias = Literal["auto", "cpu", "cuda"]
"""Device of every rank.

`cuda` gives each rank of a node its own device; `auto` is `cuda` if available, else `cpu`.
"""

ShardingKind: TypeAlias = Literal["none", "gradients", "parameters"]
"""Tensors that a rank holds for two layer groups at a time, by schemes without pipeline stages.

- `none`: a rank holds parameters and gradients of its whole stage.
- `gradients`: gradients leave for their owners after each micro-batch.
- `parameters`: gradients do the same, and parameters come from their owners for each forward and backward.
"""

MemoryRule: TypeAlias = Literal["per_micro_batch", "in_flight"]
"""Memory limit on the micro-batches of a pipeline.

- `per_micro_batch`: a limit on each micro-batch, which holds even if all of them have their largest size.
- `in_flight`: a limit on the sum over the consecutive micro-batches that a pipeline holds at once.
"""
