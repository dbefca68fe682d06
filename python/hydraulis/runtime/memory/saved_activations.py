"""Activations that micro-batches save for backward, counted while a list runs."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hydraulis.parallel.offload import HostCopies


class SavedActivations:
    """Counts each micro-batch's storages that are in use after its forward, until its backward is done.

    They are the tensors that the forward made and something still refers to: tensors saved by autograd,
    inputs of recomputation, and the output; and the input received from another stage. Each storage counts
    once, and persistent ones do not count, nor does the memory that a computation needs while it runs. Of
    layers that offload, `copies` counts what is on the device.

    Args:
        persistent: Persistent tensors of the rank, of which operations return views.
        copies: Activations of the rank in host memory; None if no layer offloads.

    Attributes:
        most_bytes: Most bytes at once of all micro-batches in flight, without layers that offload.
    """

    def __init__(self, persistent: Iterable[Tensor], copies: HostCopies | None = None) -> None:
        self._copies = copies
        self._persistent = {storage_key(tensor) for tensor in persistent}
        self.most_bytes = 0
        self._by_micro_batch: dict[int, int] = {}

    @property
    def total_bytes(self) -> int:
        """The most bytes of all micro-batches in flight, with those of layers that offload."""
        return self.most_bytes + (0 if self._copies is None else self._copies.most_device_bytes)

    @contextmanager
    def forward(self, micro_batch: int, input_tH: Tensor | None) -> Iterator[None]:
        """Count the storages of the forward that runs while the context lasts."""
        with Storages() as storages:
            yield
        saved, copied = storages.made_and_in_use(), copied_storages(self._copies)
        if input_tH is not None:
            saved[storage_key(input_tH)] = input_tH.untyped_storage().nbytes()
        self._by_micro_batch[micro_batch] = sum(
            nbytes for key, nbytes in saved.items() if key not in self._persistent and key not in copied
        )
        self.most_bytes = max(self.most_bytes, sum(self._by_micro_batch.values()))

    def release(self, micro_batch: int) -> None:
        """Forget a micro-batch whose backward is done."""
        del self._by_micro_batch[micro_batch]


class Storages(TorchDispatchMode):
    """Follows the storages of tensors while operations run, at some 20 us of CPU time per operation."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own, through super()
        self._made: dict[StorageWeakRef, int] = {}

    def made_and_in_use(self) -> dict[StorageWeakRef, int]:
        """Return the bytes of each storage that an operation returned and that is still in use."""
        return {key: nbytes for key, nbytes in self._made.items() if not key.expired()}

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and remember the storages of its results."""
        result = func(*args, **(kwargs or {}))
        for tensor in (result,) if isinstance(result, Tensor) else tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._made[storage_key(tensor)] = tensor.untyped_storage().nbytes()
        return result


def copied_storages(copies: HostCopies | None) -> set[StorageWeakRef]:
    """Return the storages of layers that offload: their copies, and what is on the device still."""
    if copies is None:
        return set()
    return {storage_key(tensor) for tensor in (*copies.pages.tensors, *copies.on_device())}


def storage_key(tensor: Tensor) -> StorageWeakRef:
    """Return a storage's key; while the key exists, no other storage gets the same one."""
    return StorageWeakRef(tensor.untyped_storage())
