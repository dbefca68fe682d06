"""Collators: the samples of a micro-batch end to end, as a model or an attention kernel takes them.

- `TransformersCollator`: the keyword arguments of a transformers model.
- `VarlenCollator`: `cu_seqlens` and `max_seqlen` of flash-attn and of torch's variable-length attention.
- `MegatronCollator`: Megatron-core's tokens, loss mask and `PackedSeqParams`.
- `PrefixTreeCollator`: sequences that share the tokens of their common prefixes.

The batches state where sequences end, and the model keeps them apart: `check_packing` tells if a model of
transformers does. The first token of a sequence and padding are no targets. An empty list
of samples gives padding alone, which adds nothing to the loss. The loss of a step is the sum over its targets
divided by `BalancedStep.targets`.
"""

from hydraulis.batching.collators.megatron import MegatronCollator
from hydraulis.batching.collators.packed_samples import PackedSamples, Packing
from hydraulis.batching.collators.packing_check import check_packing
from hydraulis.batching.collators.prefix_tree import (
    PrefixTreeCollator,
    tree_loss,
    tree_mask,
    tree_mask_mod,
)
from hydraulis.batching.collators.varlen import TransformersCollator, VarlenCollator

__all__ = [
    "MegatronCollator",
    "PackedSamples",
    "Packing",
    "PrefixTreeCollator",
    "TransformersCollator",
    "VarlenCollator",
    "check_packing",
    "tree_loss",
    "tree_mask",
    "tree_mask_mod",
]
