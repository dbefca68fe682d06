"""The run's folder in torchrun's store, which outlives the ranks that torchrun starts again."""

import os
from pathlib import Path

import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _get_default_store

_KEY = "hydraulis/run"


def is_restarted() -> bool:
    """Return whether torchrun on this node has started its ranks again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def remember_run(directory: Path) -> None:
    """Keep the run's folder for later attempts of this torchrun job; called on rank 0."""
    if dist.is_torchelastic_launched():
        _job_store().set(_KEY, str(directory.absolute()))


def remembered_run() -> Path | None:
    """Return the folder of this torchrun job's run; None if no attempt has made one. Called on rank 0."""
    if not dist.is_torchelastic_launched():
        return None
    store = _job_store()
    return Path(store.get(_KEY).decode()) if store.check([_KEY]) else None


def _job_store() -> Store:
    """Return the store below the prefixes of this attempt."""
    store: Store = _get_default_store()
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store
