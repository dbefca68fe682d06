"""Activations that micro-batches save for backward, counted while a list runs."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor

from hydraulis.runtime.memory.storages import Storages, storage_key


class SavedActivations:
    """Counts each micro-batch's storages that are in use after its forward, until its backward is done.

    They are the tensors that the forward made and something still refers to: tensors saved by autograd,
    inputs of recomputation, and the output; and the input received from another stage. Each storage counts
    once, and persistent ones do not count, nor does the memory that a computation needs while it runs.

    Args:
        persistent: Persistent tensors of the rank, of which operations return views.

    Attributes:
        most_bytes: Most bytes at once of all micro-batches in flight.
    """

    def __init__(self, persistent: Iterable[Tensor]) -> None:
        self._persistent = {storage_key(tensor) for tensor in persistent}
        self.most_bytes = 0
        self._by_micro_batch: dict[int, int] = {}

    @contextmanager
    def forward(self, micro_batch: int, input_tH: Tensor | None) -> Iterator[None]:
        """Count the storages of the forward that runs while the context lasts."""
        with Storages() as storages:
            yield
        saved = storages.made_and_in_use()
        if input_tH is not None:
            saved[storage_key(input_tH)] = input_tH.untyped_storage().nbytes()
        self._by_micro_batch[micro_batch] = sum(
            nbytes for key, nbytes in saved.items() if key not in self._persistent
        )
        self.most_bytes = max(self.most_bytes, sum(self._by_micro_batch.values()))

    def release(self, micro_batch: int) -> None:
        """Forget a micro-batch whose backward is done."""
        del self._by_micro_batch[micro_batch]
