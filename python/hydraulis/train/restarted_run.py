"""The folder that a run continues in after torchrun has started its ranks again (`--max-restarts`).

torchrun's store outlives the ranks and keeps the folder.
"""

import json
import os
from pathlib import Path

import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _get_default_store

from hydraulis.config.run import RunConfig
from hydraulis.runtime.checkpoint.folder import CheckpointFolder
from hydraulis.runtime.ranks.rank_zero import from_rank_zero
from hydraulis.train.observer import TrainingObserver

# Key of the folder in the store.
_KEY = "hydraulis/run"


def folder_to_resume(config: RunConfig, observer: TrainingObserver) -> str:
    """Return the run to resume: this job's own after a restart, `checkpoint.resume` otherwise. Collective."""
    folder, message = json.loads(from_rank_zero(lambda: json.dumps(_own_run(config.checkpoint.resume))))
    if message:
        observer.message(message)
    return str(folder)


def _own_run(resume: str) -> tuple[str, str]:
    """Return the folder to resume, and a message about a restart; empty without one."""
    own = remembered_run()
    if own is not None and CheckpointFolder.of_run(own).newest() is not None:
        return str(own), f"torchrun started the ranks again: continuing the run {own}"
    instead = f"resuming {resume}" if resume else "starting a new run"
    if own is not None:
        return resume, f"torchrun started the ranks again, and {own} has no complete checkpoint: {instead}"
    if is_restarted():
        why = "torchrun started the ranks again, and the attempt before had made no folder"
        return resume, f"{why}: {instead}"
    return resume, ""


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
