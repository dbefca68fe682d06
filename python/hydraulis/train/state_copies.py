"""The copies of a run's state in the memory of the nodes."""

import os
import shlex
from datetime import timedelta
from pathlib import Path

from hydraulis.runtime.checkpoint.description import Description
from hydraulis.runtime.ranks.every_rank import on_every_rank
from hydraulis.runtime.recovery.keeper import StateKeeper
from hydraulis.runtime.recovery.run_start import RunStart, forget_copies
from hydraulis.runtime.recovery.survey import RunInMemory
from hydraulis.runtime.recovery.twins import TwinExchange
from hydraulis.runtime.worker import Worker
from hydraulis.text.values import needed_mib
from hydraulis.train.observer import TrainingObserver
from hydraulis.train.opened_run import OpenedRun


def build_keeper(
    run: OpenedRun, worker: Worker, directory: Path, observer: TrainingObserver
) -> StateKeeper | None:
    """Build the copier of the state, and check that each node has room for the copies. Collective.

    Copies that no start continues from any more are removed before.

    Args:
        run: Run to train.
        worker: This rank's worker, with the state of the run.
        directory: The run's folder.
        observer: Receiver of the run's events.

    Returns:
        The copier; None without `checkpoint.memory_folder`.

    Raises:
        HydraulisError: A node's folder cannot be written or has no room (code `file_unwritable`); on every
            rank.
    """
    base = run.config.checkpoint.memory_folder
    if not base:
        forget_copies(directory)
        return None
    previous = run.resumed.folder if isinstance(run.resumed, RunInMemory) else None
    start = RunStart.begin(directory, Path(base), previous)
    for other in start.other_runs():
        observer.message(
            f"{base} has the state of {other}, whose ranks have ended; this run's first copy replaces it. "
            f"To continue that run, stop this one first, and use --resume {shlex.quote(str(other))}"
        )
    twins = TwinExchange.create(worker.cluster, timedelta(seconds=run.config.train.timeout_s))
    shard = worker.optimizer_shard
    keeper = StateKeeper(
        start,
        shard,
        Description(run.config, run.position, shard.master.dtype),
        twins,
        worker.votes,
        observer.message,
    )
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    of_node, first = keeper.bytes * ranks, keeper.first_bytes * ranks
    start.remove_unused(run.completed, first)
    on_every_rank(lambda: start.folder.require_room(first, of_node, previous))
    where = "with a twin of each shard on another node" if twins else "on one node without twins"
    observer.message(
        f"copying the state into {base} after each step: {needed_mib(of_node)} MiB on each node, {where}"
    )
    return keeper
