"""The bytes of one micro-batch: those that it saves for its backward, and on CUDA its peak."""

import gc
import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hydraulis.data.collate import PackedMicroBatch
from hydraulis.runtime.loop import frozen_objects
from hydraulis.runtime.pipeline.stage import Stage

if TYPE_CHECKING:
    from torch.multiprocessing.reductions import StorageWeakRef


# About a hundred times the delay on an idle core.
GLOO_RELEASE_S = 0.1


def activation_bytes(stage: Stage, input_tH: Tensor | None, micro_batch: PackedMicroBatch) -> int:
    """Count the bytes that one micro-batch's forward saves for its backward, including checkpoints.

    These are the tensors that autograd saves, and every other tensor of the forward that still exists
    afterwards, such as the inputs of recomputation. The output counts if a backward starts from it. Each
    storage counts once, and neither parameters nor tensors of layers that offload count.
    """
    # Imported here, because it relies on parts of torch without a stability promise.
    from hydraulis.runtime.memory.saved_activations import Storages, copied_storages, storage_key

    # The references keep every saved tensor alive until it is counted.
    saved: dict[StorageWeakRef, Tensor] = {}
    storages = Storages()

    def remember(tensor: Tensor) -> None:
        # Autograd gets no tensor, because a saved output would keep its own graph alive for ever.
        saved[storage_key(tensor)] = tensor

    # The collection does not visit all that is imported.
    with frozen_objects():
        with torch.autograd.graph.saved_tensors_hooks(remember, lambda nothing: nothing), storages:
            output = stage.forward(input_tH, micro_batch, max(1, micro_batch.num_targets))
        # Tensors in reference cycles do not count, because a garbage collection can free them at any time.
        gc.collect()
    if stage.padding_multiple > 1:
        # A gloo thread releases a sent tensor shortly after its wait has returned.
        time.sleep(GLOO_RELEASE_S)
    counted = storages.made_and_in_use()
    counted.pop(storage_key(output), None)
    for tensor in ([output] if output.requires_grad else []) + [*saved.values()]:
        counted[storage_key(tensor)] = tensor.untyped_storage().nbytes()
    if stage.copies is not None and input_tH is not None:
        # It stays on the device if the first layer offloads, unseen by these hooks.
        counted[storage_key(input_tH)] = input_tH.untyped_storage().nbytes()
    left_out = {storage_key(parameter) for parameter in stage.module.parameters()}
    left_out |= copied_storages(stage.copies)
    # The graph has the hook, which has these tensors, which have the graph.
    saved.clear()
    return sum(nbytes for key, nbytes in counted.items() if key not in left_out)


def allocated_bytes(stage: Stage, input_tH: Tensor | None, micro_batch: PackedMicroBatch) -> tuple[int, int]:
    """Measure the memory of one micro-batch on CUDA by its allocator, with its input.

    Returns:
        Bytes after the forward, saved for the backward; most bytes at once over forward and backward.
    """
    device = stage.device
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device) - (0 if input_tH is None else input_tH.nbytes)
    output = stage.forward(input_tH, micro_batch, max(1, micro_batch.num_targets))
    saved = torch.cuda.memory_allocated(device) - before
    if stage.copies is not None:
        # The newest layer that offloads leaves the device with the next one.
        saved -= sum(tensor.nbytes for tensor in stage.copies.on_device())
    # A first stage with only frozen parameters has no backward.
    if output.requires_grad:
        torch.autograd.backward(output, None if stage.is_last else torch.ones_like(output))
    return saved, torch.cuda.max_memory_allocated(device) - before
