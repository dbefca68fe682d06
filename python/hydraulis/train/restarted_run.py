"""The folder that a run continues in after its ranks were started again (`--max-restarts`).

torchrun's store outlives the ranks and keeps the folder; for ranks of `hydraulis train` an open file does.
"""

import json
import os
from pathlib import Path

import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _get_default_store

from hydraulis.config.run import RunConfig
from hydraulis.runtime.checkpoint.folder import CheckpointFolder
from hydraulis.runtime.checkpoint.resume import LATEST, ResumedRun, find_resumed, numbered_runs
from hydraulis.runtime.ranks.rank_zero import from_rank_zero
from hydraulis.runtime.ranks.torchrun import RESTART_COUNT, RUN_FILE
from hydraulis.runtime.recovery.run_start import named_starts
from hydraulis.runtime.recovery.survey import find_in_memory
from hydraulis.train.observer import TrainingObserver

# Key of the folder in the store.
_KEY = "hydraulis/run"


def find_run(config: RunConfig, observer: TrainingObserver) -> ResumedRun | None:
    """Find the run to resume, in the memory of the nodes or in its newest checkpoint. Collective.

    Returns:
        The run; None for a new run.

    Raises:
        HydraulisError: The errors of `find_resumed`.
    """
    kept = find_in_memory(lambda: _run_to_resume(config), config.checkpoint.memory_folder, observer.message)
    return kept or find_resumed(folder_to_resume(config, observer), config.output.directory)


def _run_to_resume(config: RunConfig) -> Path | None:
    """Return the folder of the run to resume, which may have no checkpoint yet; None for a new run."""
    own, resume = remembered_run(), config.checkpoint.resume
    if own is not None or not resume:
        return own
    if resume != LATEST:
        return Path(resume)
    runs = reversed(numbered_runs(Path(config.output.directory)))
    return next((run for run in runs if CheckpointFolder.of_run(run).newest() or named_starts(run)), None)


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
        return str(own), f"the ranks were started again: continuing {own} from its newest checkpoint"
    instead = f"resuming {resume}" if resume else "starting a new run"
    if own is not None:
        return resume, f"the ranks were started again, and {own} has no complete checkpoint: {instead}"
    if is_restarted():
        why = "the ranks were started again, and the start before had made no folder"
        return resume, f"{why}: {instead}"
    return resume, ""


def is_restarted() -> bool:
    """Return whether the launcher on this node has started its ranks again after a failure."""
    return int(os.environ.get(RESTART_COUNT, "0")) > 0


def remember_run(directory: Path) -> None:
    """Keep the run's folder for later starts of this job; called on rank 0."""
    if RUN_FILE in os.environ:
        os.pwrite(int(os.environ[RUN_FILE]), os.fsencode(directory.absolute()), 0)
    elif dist.is_torchelastic_launched():
        _job_store().set(_KEY, str(directory.absolute()))


def remembered_run() -> Path | None:
    """Return the folder of this job's run; None if no start has made one. Called on rank 0."""
    if RUN_FILE in os.environ:
        file = int(os.environ[RUN_FILE])
        folder = os.fsdecode(os.pread(file, os.fstat(file).st_size, 0))
        return Path(folder) if folder else None
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
