"""How many bytes the backward pass keeps."""

import gc
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hydraulis.data.collate import PackedMicroBatch
from hydraulis.runtime.stage import Stage


def activation_bytes(stage: Stage, input_tH: Tensor | None, micro_batch: PackedMicroBatch) -> int:
    """Count the bytes that one micro-batch's forward keeps for its backward, checkpoints included.

    These are the tensors that autograd saves, and all else that the forward made and that is there after it,
    which is how recomputation keeps what it starts from. Each storage counts once, whatever the number of
    tensors that share it; parameters do not count, nor does the output, unless it is saved.
    """
    storages = _Storages()

    def remember(tensor: Tensor) -> Tensor:
        storages.saved[_key(tensor)] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor), storages:
        output = stage.forward(input_tH, micro_batch, max(1, micro_batch.num_targets))
    # Cycles keep nothing: a collector's run would free them at any time.
    gc.collect()
    kept = storages.made_and_there()
    kept.pop(_key(output), None)
    kept |= {key: tensor.untyped_storage().nbytes() for key, tensor in storages.saved.items()}
    parameters = {_key(parameter) for parameter in stage.module.parameters()}
    return sum(nbytes for key, nbytes in kept.items() if key not in parameters)


class _Storages(TorchDispatchMode):
    """Follows the storages of tensors while operations run.

    Attributes:
        saved: tensors that autograd saved, by storage; held, so that none is freed before it is counted.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own, through super()
        self.saved: dict[StorageWeakRef, Tensor] = {}
        self._made: dict[StorageWeakRef, int] = {}

    def made_and_there(self) -> dict[StorageWeakRef, int]:
        """Give the bytes of each storage that some operation gave and that is still in use."""
        return {key: nbytes for key, nbytes in self._made.items() if not key.expired()}

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._made[_key(tensor)] = tensor.untyped_storage().nbytes()
        return result


def _key(tensor: Tensor) -> StorageWeakRef:
    """Name a storage; while the name exists, no other storage gets the same."""
    return StorageWeakRef(tensor.untyped_storage())
