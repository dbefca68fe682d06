"""Writes checkpoints during training.

The training thread copies the state and continues; one thread of each rank writes the copy and calls no
collective. Between later steps the ranks check whether all shards are written; then rank 0 writes the
manifest.
"""

import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from hydraulis.config.output import CheckpointConfig
from hydraulis.data.sampling.batch_group import BatchGroup
from hydraulis.errors import HydraulisError
from hydraulis.files import sync
from hydraulis.runtime.agreement.step_sum import Votes
from hydraulis.runtime.checkpoint.best import best_checkpoint
from hydraulis.runtime.checkpoint.description import Description
from hydraulis.runtime.checkpoint.folder import CheckpointFolder
from hydraulis.runtime.checkpoint.manifest import MANIFEST, ShardRecord
from hydraulis.runtime.checkpoint.shard import (
    Snapshot,
    check_sound,
    parameter_records,
    shard_name,
    write_durably,
    write_shard,
)
from hydraulis.runtime.ranks import host
from hydraulis.runtime.ranks.every_rank import raise_everywhere
from hydraulis.runtime.ranks.rank_zero import from_rank_zero, on_rank_zero, raise_deferred
from hydraulis.runtime.ranks.streams import SideStream
from hydraulis.runtime.records.run_directory import RunDirectory, unwritten
from hydraulis.runtime.state.optimizer_shard import OptimizerShard

CHECKPOINT_CONFIG = "config.json"
# Question to each rank (see `Votes`).
_WRITING = "writing"


@dataclass(frozen=True, slots=True)
class _Pending:
    """A checkpoint in progress."""

    step: int
    path: Path
    group: BatchGroup | None
    written: Future[ShardRecord]


class CheckpointSaver:
    """Writes the checkpoints of one run, one at a time. Every method is collective.

    Args:
        folder: Folder of the run's checkpoints, visible to all ranks.
        config: Interval in steps, and number of checkpoints to keep.
        shard: This rank's optimizer shard.
        description: Builder of the manifests, which only rank 0 builds.
        votes: Questions of each step: the saver asks whether a rank is still writing.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        config: CheckpointConfig,
        shard: OptimizerShard,
        description: Description,
        votes: Votes,
    ) -> None:
        self._folder = folder
        self._config = config
        self._shard = shard
        self._description = description
        self._stream = SideStream(shard.master.device)
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: _Pending | None = None
        self._begun: int | None = None
        self._votes = votes
        votes.ask(_WRITING, self._is_writing)

    def after(self, step: int) -> None:
        """Complete a written checkpoint, and start the next one if it is due after `step` iterations.

        Raises:
            HydraulisError: A rank could not write its shard, or rank 0 the manifest (code
                `file_unwritable`), or the state has a number that is not finite (`state_not_finite`).
        """
        self._poll()
        if self._config.every_steps is not None and step % self._config.every_steps == 0:
            self._begin(step)

    def close(self, step: int) -> Path:
        """Write the final checkpoint after `step` iterations unless it exists, and return its folder.

        Raises:
            HydraulisError: The errors of `after`.
        """
        if step != self._begun:
            self._begin(step)
        self.finish()
        return self._folder.step(step)

    def finish(self) -> None:
        """Wait for the checkpoint in progress, if any, and complete it.

        Raises:
            HydraulisError: The errors of `after`.
        """
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        raise_everywhere(_failure(pending.written))
        shards = host.gather_objects(pending.written.result()) or []
        on_rank_zero(lambda: self._complete(pending, tuple(shards)))

    def _begin(self, step: int) -> None:
        """Copy the state, and start writing it."""
        raise_deferred()
        self.finish()
        path = Path(from_rank_zero(lambda: str(self._make_folder(step))))
        snapshot = Snapshot(self._shard, self._stream)
        file = path / shard_name(dist.get_rank(), dist.get_world_size())
        self._begun = step
        group = self._description.position.group_after(step)
        self._pending = _Pending(step, path, group, self._writer.submit(_write_sound, file, snapshot, step))
        self._votes.forget(_WRITING)

    def _poll(self) -> None:
        """Complete the checkpoint in progress if all ranks had written their shards in the last step."""
        if self._pending is not None and self._votes.count(_WRITING) == 0:
            # Else the error would replace the completion, whose checkpoint is no longer pending by then.
            raise_deferred()
            self.finish()

    def _is_writing(self) -> bool:
        return self._pending is not None and not self._pending.written.done()

    def _make_folder(self, step: int) -> Path:
        try:
            return self._folder.begin(step)
        except OSError as error:
            raise _unwritten(error) from error

    def _complete(self, pending: _Pending, shards: tuple[ShardRecord, ...]) -> None:
        # A power failure then takes the records of later steps only.
        RunDirectory(self._folder.path.parent).sync()
        manifest = self._description.manifest(
            pending.step, shards, parameter_records(self._shard), pending.group
        )
        write_durably(
            pending.path / CHECKPOINT_CONFIG, lambda path: path.write_text(self._description.config_json())
        )
        write_durably(pending.path / MANIFEST, lambda path: path.write_text(manifest.to_json()))
        try:
            # Older checkpoints go only after the disk has the name of this one.
            sync(self._folder.path)
            best = best_checkpoint(self._folder) if self._config.keep_best else None
            self._folder.rotate(self._config.keep, best)
        except OSError as error:
            raise _unwritten(error) from error


def _write_sound(file: Path, snapshot: Snapshot, step: int) -> ShardRecord:
    """Write a shard whose numbers are finite, and return its record."""
    check_sound(snapshot.tensors(), step, dist.get_rank())
    return write_shard(file, snapshot)


def _failure(written: "Future[ShardRecord]") -> HydraulisError | None:
    """Wait for the writer and return its error, None if it succeeded."""
    error = written.exception()
    if error is None or isinstance(error, HydraulisError):
        return error
    return _unwritten(error)


def _unwritten(error: BaseException) -> HydraulisError:
    name = error.filename if isinstance(error, OSError) else None
    return unwritten("the checkpoint" if name is None else os.fsdecode(name), error)
