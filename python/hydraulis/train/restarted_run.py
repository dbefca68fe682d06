"""The folder that a run continues in after torchrun has started its ranks again (`--max-restarts`)."""

import json

from hydraulis.config.run import RunConfig
from hydraulis.runtime.checkpoint.folder import CheckpointFolder
from hydraulis.runtime.ranks.rank_zero import from_rank_zero
from hydraulis.runtime.ranks.restart import is_restarted, remembered_run
from hydraulis.train.observer import TrainingObserver


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
