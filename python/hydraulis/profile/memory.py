"""How many bytes the backward pass keeps."""

import torch
from torch import Tensor

from hydraulis.data.collate import PackedMicroBatch
from hydraulis.runtime.stage import Stage


def activation_bytes(stage: Stage, input_tH: Tensor | None, micro_batch: PackedMicroBatch) -> int:
    """Count the bytes of tensors that one micro-batch's forward keeps for its backward.

    Each storage counts once, whatever the number of tensors that share it; parameters do not count.
    """
    parameters = {parameter.untyped_storage().data_ptr() for parameter in stage.module.parameters()}
    kept: dict[int, Tensor] = {}

    def remember(tensor: Tensor) -> Tensor:
        # The tensor is kept too: a freed storage's address could come back as another's.
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        output = stage.forward(input_tH, micro_batch, max(1, micro_batch.num_targets))
    del output
    return sum(
        tensor.untyped_storage().nbytes() for address, tensor in kept.items() if address not in parameters
    )
