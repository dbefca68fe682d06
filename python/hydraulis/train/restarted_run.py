"""The folder that a run continues in after its ranks were started again (`--max-restarts`).

The store of torchrun's agent outlives the ranks and keeps the folder; for ranks of `hydraulis train` an open
file does. Where rank 0 serves the store (TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1), nothing keeps the folder.
"""

import os
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _get_default_store

from hydraulis.config.run import RunConfig
from hydraulis.errors import InvalidInputError
from hydraulis.runtime.checkpoint.folder import CheckpointFolder
from hydraulis.runtime.checkpoint.resume import LATEST, ResumedRun, find_resumed, numbered_runs
from hydraulis.runtime.ranks import host
from hydraulis.runtime.ranks.rank_zero import from_rank_zero, from_rank_zero_unless_stopped
from hydraulis.runtime.ranks.stop import StopRequest
from hydraulis.runtime.ranks.torchrun import AGENT_STORE, RESTART_COUNT, RUN_FILE
from hydraulis.runtime.records.run_lock import LOST_NODE_S, lock_owner, wait_unlocked
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
        HydraulisError: The errors of `find_resumed` and `folder_to_resume`.
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
    """Return the run to resume: this job's own after a restart, `checkpoint.resume` otherwise. Collective.

    Raises:
        InvalidInputError: The ranks were started again, and neither the launcher nor the configuration has
            the run's folder (code `config_value`).
    """
    resume, restarted = config.checkpoint.resume, is_restarted()
    folder, message = from_rank_zero(lambda: _own_run(resume, restarted=restarted))
    if message:
        observer.message(message)
    return folder


def _own_run(resume: str, *, restarted: bool) -> tuple[str, str]:
    """Return the folder to resume, and a message about a restart; empty without one."""
    if dist.is_torchelastic_launched() and not _is_kept():
        return resume, _without_folder(resume, restarted=restarted)
    own = remembered_run()
    if own is not None and CheckpointFolder.of_run(own).newest() is not None:
        return str(own), f"the ranks were started again: continuing {own} from its newest checkpoint"
    instead = f"resuming {resume}" if resume else "starting a new run"
    if own is not None:
        return resume, f"the ranks were started again, and {own} has no complete checkpoint: {instead}"
    if restarted:
        why = "the ranks were started again, and the start before had made no folder"
        return resume, f"{why}: {instead}"
    return resume, ""


def _without_folder(resume: str, *, restarted: bool) -> str:
    """Return a message of ranks whose launcher keeps no folder; refuse a restart that has none to resume."""
    if resume:
        return f"the ranks were started again: resuming {resume}" if restarted else ""
    why = f"{AGENT_STORE} = '{os.environ.get(AGENT_STORE, '')}' and checkpoint.resume = ''"
    if not restarted:
        return f"{why}: ranks that are started again will not find this run; add --resume {LATEST}"
    message = (
        f"the ranks were started again with {why}: they do not know their run's folder, and would start a "
        f"new run; start torchrun with --resume {LATEST}, or without TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
    )
    raise InvalidInputError(message, code="config_value")


def is_restarted() -> bool:
    """Return whether the launcher of any node has started its ranks again after a failure. Collective.

    The launcher of a node that was added later counts from 0.
    """
    return host.largest(int(os.environ.get(RESTART_COUNT, "0"))) > 0


def wait_for_lock(run: Path, stop: StopRequest, observer: TrainingObserver) -> bool:
    """Wait for the lock of the run's folder, if the ranks were started again. Collective.

    The node of the rank that has locked the folder may be lost (see `LOST_NODE_S`).

    Args:
        run: The run's folder.
        stop: Request to end the run, which ends the wait too.
        observer: Receiver of a message about the wait.

    Returns:
        Whether the run goes on; false if it was stopped.

    Raises:
        InvalidInputError: The folder is still locked after the limit (code `folder_busy`).
    """
    if not is_restarted():
        return True
    owner = from_rank_zero(lambda: lock_owner(run))
    if not owner:
        return True
    observer.message(
        f"waiting at most {LOST_NODE_S:g} s for the lock of {run}, which {owner} has: a shared disk keeps "
        "the lock of a lost node for a while"
    )

    def wait(alive: Callable[[], None]) -> str:
        wait_unlocked(run, alive)
        return ""

    if from_rank_zero_unless_stopped(wait, stop.agreed) is None:
        observer.message("stopped before the first step, while the run waited for its lock")
        return False
    return True


def remember_run(directory: Path) -> None:
    """Keep the run's folder for later starts of this job; called on rank 0."""
    if RUN_FILE in os.environ:
        os.pwrite(int(os.environ[RUN_FILE]), os.fsencode(directory.absolute()), 0)
    elif dist.is_torchelastic_launched() and _is_kept():
        _job_store().set(_KEY, str(directory.absolute()))


def remembered_run() -> Path | None:
    """Return the folder of this job's run; None if no start has made one. Called on rank 0."""
    if RUN_FILE in os.environ:
        file = int(os.environ[RUN_FILE])
        folder = os.fsdecode(os.pread(file, os.fstat(file).st_size, 0))
        return Path(folder) if folder else None
    if not (dist.is_torchelastic_launched() and _is_kept()):
        return None
    store = _job_store()
    return Path(store.get(_KEY).decode()) if store.check([_KEY]) else None


def _is_kept() -> bool:
    """Return whether the launcher keeps the run's folder for a restart."""
    return RUN_FILE in os.environ or os.environ.get(AGENT_STORE) == "True"


def _job_store() -> Store:
    """Return the store below the prefixes of this attempt."""
    store: Store = _get_default_store()
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store
