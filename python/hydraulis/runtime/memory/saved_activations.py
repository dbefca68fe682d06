"""What the micro-batches in flight keep for their backwards, counted while a list runs."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor

from hydraulis.runtime.memory.storages import Storages, storage_key


class KeptActivations:
    """Counts the storages of each micro-batch that are there after its forward, until its backward is done.

    That is all that the forward made and something still holds: what autograd saves, what recomputation
    starts from, the output; and the input, if another stage sent it. Each storage counts once, and those that
    last not at all. What a computation needs for itself while it runs does not count.

    Args:
        lasting: tensors that the rank always holds, of which operations give views.

    Attributes:
        most_bytes: at once, of all micro-batches in flight.
    """

    def __init__(self, lasting: Iterable[Tensor]) -> None:
        self._lasting = {storage_key(tensor) for tensor in lasting}
        self.most_bytes = 0
        self._by_micro_batch: dict[int, int] = {}

    @contextmanager
    def forward(self, micro_batch: int, input_tH: Tensor | None) -> Iterator[None]:
        """Count what is kept of the forward that runs for as long as the context lasts."""
        with Storages() as storages:
            yield
        kept = storages.made_and_there()
        if input_tH is not None:
            kept[storage_key(input_tH)] = input_tH.untyped_storage().nbytes()
        self._by_micro_batch[micro_batch] = sum(
            nbytes for key, nbytes in kept.items() if key not in self._lasting
        )
        self.most_bytes = max(self.most_bytes, sum(self._by_micro_batch.values()))

    def release(self, micro_batch: int) -> None:
        """Forget a micro-batch whose backward is done."""
        del self._by_micro_batch[micro_batch]
