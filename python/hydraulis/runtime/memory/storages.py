"""Which memory tensors share, and which of it is still there."""

from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Storages(TorchDispatchMode):
    """Follows the storages of tensors while operations run; some 20 us of CPU time for each of them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own, through super()
        self._made: dict[StorageWeakRef, int] = {}

    def made_and_there(self) -> dict[StorageWeakRef, int]:
        """Give the bytes of each storage that some operation gave and that is still in use."""
        return {key: nbytes for key, nbytes in self._made.items() if not key.expired()}

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and remember what it gave."""
        result = func(*args, **(kwargs or {}))
        for tensor in (result,) if isinstance(result, Tensor) else tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._made[storage_key(tensor)] = tensor.untyped_storage().nbytes()
        return result


def storage_key(tensor: Tensor) -> StorageWeakRef:
    """Name a storage; while the name exists, no other storage gets the same."""
    return StorageWeakRef(tensor.untyped_storage())
