"""How many bytes the backward pass keeps."""

import gc
import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hydraulis.data.collate import PackedMicroBatch
from hydraulis.runtime.pipeline.stage import Stage

if TYPE_CHECKING:
    from torch.multiprocessing.reductions import StorageWeakRef


# Some hundred times what it takes on an idle core.
GLOO_LETS_GO_S = 0.1


def activation_bytes(stage: Stage, input_tH: Tensor | None, micro_batch: PackedMicroBatch) -> int:
    """Count the bytes that one micro-batch's forward keeps for its backward, checkpoints included.

    These are the tensors that autograd saves, and all else that the forward made and that is there after it,
    which is how recomputation keeps what it starts from; among it the output, if a backward begins from it.
    Each storage counts once, whatever the number of tensors that share it; parameters do not count.
    """
    # What torch does not promise is asked for where it is needed.
    from hydraulis.runtime.memory.storages import Storages, storage_key

    # Held, so that none is freed before it is counted.
    saved: dict[StorageWeakRef, Tensor] = {}
    storages = Storages()

    def remember(tensor: Tensor) -> Tensor:
        saved[storage_key(tensor)] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor), storages:
        output = stage.forward(input_tH, micro_batch, max(1, micro_batch.num_targets))
    # Cycles keep nothing: a collector's run would free them at any time.
    gc.collect()
    # A thread of gloo's lets go of what it has sent a moment after it was waited for.
    time.sleep(GLOO_LETS_GO_S)
    kept = storages.made_and_there()
    kept.pop(storage_key(output), None)
    for tensor in ([output] if output.requires_grad else []) + [*saved.values()]:
        kept[storage_key(tensor)] = tensor.untyped_storage().nbytes()
    parameters = {storage_key(parameter) for parameter in stage.module.parameters()}
    return sum(nbytes for key, nbytes in kept.items() if key not in parameters)
