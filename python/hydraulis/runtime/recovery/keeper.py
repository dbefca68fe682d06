"""Copies the state into the memory of the nodes after each step, while training goes on.

A copy begins between two steps. Each rank's thread sends the rank's shard to the holder of its twin, and
writes its own shard and the twin that it receives. The votes of the next step say whether all ranks have
written. If so, older files are removed and the next copy begins; otherwise this copy goes on. A rank that
cannot write ends the copies of all ranks, and training continues.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import torch.distributed as dist
from torch import Tensor

from hydraulis.runtime.agreement.step_sum import Votes
from hydraulis.runtime.checkpoint.description import Description
from hydraulis.runtime.checkpoint.manifest import ShardRecord
from hydraulis.runtime.checkpoint.shard import parameter_records, shard_name
from hydraulis.runtime.ranks import host
from hydraulis.runtime.ranks.liveness.bounded import BackgroundCall
from hydraulis.runtime.ranks.streams import SideStream
from hydraulis.runtime.recovery.copy_file import write_copy
from hydraulis.runtime.recovery.memory_folder import CopyName
from hydraulis.runtime.recovery.run_start import RunStart
from hydraulis.runtime.recovery.shard_part import ShardPart, own_buffers
from hydraulis.runtime.recovery.twins import TwinExchange
from hydraulis.runtime.state.optimizer_shard import HostCopy, OptimizerShard

# Fields of a file's metadata.
MANIFEST, STEP, DATA = "manifest", "step", "data"
COPIES_AT_ONCE = 2
"""Copies of a shard in a folder at the same time: a whole one, and the next one."""
# Questions to each rank (see `Votes`).
_COPYING, _FAILED = "copying", "copying failed"


@dataclass(frozen=True, slots=True)
class _Pending:
    """A copy in progress."""

    step: int
    call: BackgroundCall[None]


class StateKeeper:
    """Copies the optimizer shards of all ranks after each step. Every method is collective.

    Args:
        start: This start of the run.
        shard: This rank's optimizer shard.
        description: Builder of the manifest that each file has.
        twins: Exchange of copies with other nodes; None on one node.
        votes: Questions of each step: the keeper asks whether a rank is still copying.
        on_failure: Function that receives the message that the copies have ended.
    """

    def __init__(
        self,
        start: RunStart,
        shard: OptimizerShard,
        description: Description,
        twins: TwinExchange | None,
        votes: Votes,
        on_failure: Callable[[str], None],
    ) -> None:
        self._start, self._shard, self._description = start, shard, description
        self._twins = twins
        self._stream = SideStream(shard.master.device)
        self._votes, self._on_failure = votes, on_failure
        self._pending: _Pending | None = None
        self._is_over = False
        # Only the files of one step differ in their step and in their position in the data.
        world_size = dist.get_world_size()
        shards = tuple(
            ShardRecord(file=shard_name(rank, world_size), bytes=0, digest="") for rank in range(world_size)
        )
        self._manifest = description.manifest(1, shards, parameter_records(shard)).to_json()
        self._parts = {
            rank: {trained: ShardPart.of(shard, rank, trained=trained) for trained in (True, False)}
            for rank in self._held_ranks
        }
        votes.ask(_COPYING, self._is_copying)
        votes.ask(_FAILED, self._has_failed)

    @property
    def bytes(self) -> int:
        """The most bytes of this rank's files."""
        return self._bytes_of(COPIES_AT_ONCE)

    @property
    def first_bytes(self) -> int:
        """The bytes of this rank's files with the first copy alone."""
        return self._bytes_of(1)

    @property
    def has_whole(self) -> bool:
        """Whether the nodes have a whole copy of the state, of this start or of the one that it continues."""
        return not self._is_over and (self._start.is_alone or self._start.previous is not None)

    def after(self, step: int) -> None:
        """Complete a copy that all ranks have written, and begin the one after `step` iterations."""
        if self._is_over:
            return
        if self._votes.count(_FAILED):
            self._give_up()
            return
        if self._pending is not None:
            if self._votes.count(_COPYING) != 0:
                return
            self._complete(self._pending.step)
        self._begin(step)

    def close(self) -> None:
        """Wait for the copy in progress, and remove all files of this start from the nodes."""
        if self._pending is not None:
            self._pending.call.ended.wait()
        self._is_over = True
        self._start.end()

    def _bytes_of(self, copies: int) -> int:
        """Return the bytes of this many copies; frozen parameters are copied once."""
        trained = sum(parts[True].elements * len(parts[True].buffers) for parts in self._parts.values())
        frozen = sum(parts[False].elements for parts in self._parts.values())
        return copies * self._shard.master.itemsize * trained + self._shard.frozen.itemsize * frozen

    @property
    def _held_ranks(self) -> list[int]:
        own = [dist.get_rank()]
        return own if self._twins is None else [*own, self._twins.source]

    def _begin(self, step: int) -> None:
        """Copy the state, and start the thread that sends and writes it."""
        is_first = self._pending is None
        changed = HostCopy(self._shard, own_buffers(self._shard, trained=True), self._stream)
        frozen = (
            HostCopy(self._shard, own_buffers(self._shard, trained=False), self._stream) if is_first else None
        )
        position = self._description.position
        metadata = {
            MANIFEST: self._manifest,
            STEP: str(step),
            DATA: json.dumps(asdict(position.cursor(step, position.group_after(step)))),
        }

        def keep() -> None:
            files = self._exchanged(frozen, None) if frozen is not None else {}
            files |= self._exchanged(changed, step)
            for name, tensors in files.items():
                write_copy(self._start.folder.file(name), name, tensors, metadata)

        self._pending = _Pending(step, BackgroundCall(keep))
        self._votes.forget(_COPYING)

    def _exchanged(self, copy: HostCopy, step: int | None) -> dict[CopyName, Mapping[str, Tensor]]:
        """Send one part of this rank's shard to the holder of its twin; return the tensors to write by file.

        Nothing is written before: a rank that cannot write must not let another one wait for its message.
        """
        flats = {dist.get_rank(): copy.flats()}
        if self._twins is not None:
            part = self._parts[self._twins.source][step is not None]
            flats[self._twins.source] = self._twins.exchange(flats[dist.get_rank()], part)
        return {
            CopyName(step, rank, dist.get_world_size(), dist.get_rank()): self._parts[rank][
                step is not None
            ].tensors(of_rank)
            for rank, of_rank in flats.items()
        }

    def _complete(self, step: int) -> None:
        """Remove this rank's files of earlier steps: all ranks have written those of `step`."""
        folder = self._start.folder
        for copy in folder.copies():
            if copy.holder == dist.get_rank() and copy.step is not None and copy.step < step:
                folder.file(copy).unlink(missing_ok=True)
        self._start.has_whole_copy()

    def _give_up(self) -> None:
        """End the copies on all ranks, because a rank cannot write; report the first cause."""
        self._is_over = True
        causes = host.all_gather_objects(self._cause())
        rank, cause = next((rank, cause) for rank, cause in enumerate(causes) if cause)
        self._on_failure(
            f"no more copies of the state in {self._start.folder.base}: rank {rank} cannot write: {cause}; "
            "a loss of ranks now costs the steps since the last checkpoint"
        )
        self.close()

    def _is_copying(self) -> bool:
        return self._pending is not None and not self._pending.call.ended.is_set()

    def _has_failed(self) -> bool:
        return not self._is_over and self._cause() != ""

    def _cause(self) -> str:
        error = None if self._pending is None else self._pending.call.error
        return "" if error is None else str(error) or repr(error)
