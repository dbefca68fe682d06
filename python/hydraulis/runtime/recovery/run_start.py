"""The starts of a run, each of which copies its state into a folder of its own.

A file of the run's folder names the starts whose copies continue the run, newest first. A start that
continues from a checkpoint names itself alone, since older copies have another history. A start that
continues from copies names itself in front of their start, until a copy of its own is whole: a loss of ranks
in between costs no step more.

A restart needs no more room than a first start. Before its first copy only the files of the step that it
continues from stay, one copy. They go before its second copy begins, so there are never more than two copies.
An older step stays too where it alone has twins, if there is room.
"""

import re
import shutil
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hydraulis.files import read_regular
from hydraulis.runtime.ranks import host
from hydraulis.runtime.ranks.every_rank import on_every_rank
from hydraulis.runtime.ranks.rank_zero import from_rank_zero, on_rank_zero
from hydraulis.runtime.records.run_directory import MEMORY, RunDirectory
from hydraulis.runtime.recovery.memory_folder import MemoryFolder

_NAME = re.compile(r"[0-9a-f]{32}")


@dataclass(slots=True)
class RunStart:
    """One start of a run. Every method is collective.

    Attributes:
        run: The run's folder.
        folder: Folder of the start's copies on this node.
        previous: Folder of the copies that the start continues from; None for another start.
        is_alone: Whether this start alone is named.
    """

    run: Path
    folder: MemoryFolder
    previous: MemoryFolder | None
    is_alone: bool = False

    @classmethod
    def begin(cls, run: Path, base: Path, previous: MemoryFolder | None) -> Self:
        """Create the folder of a new start on every node, and name the start.

        Args:
            run: The run's folder.
            base: Value of `checkpoint.memory_folder`.
            previous: Folder of the copies that the start continues from; None for another start.

        Raises:
            HydraulisError: A folder cannot be written (code `file_unwritable`); on every rank.
        """
        folder = MemoryFolder(base, from_rank_zero(lambda: uuid.uuid4().hex))
        on_every_rank(lambda: folder.create(run))

        def name() -> None:
            earlier = [] if previous is None else [previous.start]
            _name(run, [folder.start, *earlier])

        on_rank_zero(name)
        return cls(run, folder, previous)

    def other_runs(self) -> list[Path]:
        """List the other runs whose copies this start will remove, as far as rank 0's node has them."""

        def found() -> list[str]:
            own = self.run.resolve()
            starts = self.folder.abandoned_starts().items()
            runs = {str(run) for start, run in starts if run != own and start in named_starts(run)}
            return sorted(runs)

        return list(map(Path, from_rank_zero(found)))

    def remove_unused(self, step: int, first: int) -> None:
        """Remove the run's copies that no start continues from any more. Collective.

        Called after all ranks have read the state. The copies of the step that the run continues from stay
        until a copy of this start is whole: the loss of further ranks until then costs no step more. A rank
        may have been lost before it wrote the twins of that step. An older step with more copies then stays
        for the loss of a node, if every node has room for its first new copy.

        Args:
            step: Step that the run continues from.
            first: Bytes of this node's first new copy.
        """
        own, named = self.run.resolve(), {self.folder.start}
        if self.previous is not None:
            named.add(self.previous.start)
        keeps_older = self.previous is not None and self._has_better_step(self.previous, step, first)

        def remove() -> None:
            if self.previous is not None and not keeps_older:
                self.previous.remove_other_steps(step)
            for start, run in self.folder.abandoned_starts().items():
                if run == own and start not in named:
                    MemoryFolder(self.folder.base, start).remove()

        on_every_rank(remove)

    def _has_better_step(self, previous: MemoryFolder, step: int, first: int) -> bool:
        """Return whether an older step has more copies than a step, and every node room. Collective."""
        has_room = shutil.disk_usage(self.folder.base).free >= first
        seen = host.all_gather_objects((previous.copies(), has_room))
        copies = {copy for of_rank, _ in seen for copy in of_rank}
        # A newer step is not whole.
        numbers = Counter(copy.step for copy in copies if copy.step is not None and copy.step <= step)
        return all(room for _, room in seen) and max(numbers.values(), default=0) > numbers[step]

    def has_whole_copy(self) -> None:
        """Name this start alone, and remove the copies of earlier ones on all nodes. Collective."""
        if self.is_alone:
            return
        self.is_alone = True
        on_rank_zero(lambda: _name(self.run, [self.folder.start]))
        if self.previous is not None:
            self.previous.remove()
        self.folder.remove_abandoned()
        # No rank begins its second copy before the memory of earlier ones is free.
        host.barrier()

    def end(self) -> None:
        """Remove all copies of the run from all nodes."""
        forget_copies(self.run)
        host.barrier()
        for folder in (self.folder, self.previous):
            if folder is not None:
                folder.remove()


def named_starts(run: Path) -> list[str]:
    """Return the starts whose copies continue a run, newest first."""
    with suppress(OSError, ValueError):
        names = read_regular(run / MEMORY).decode().split()
        return [name for name in names if _NAME.fullmatch(name)]
    return []


def forget_copies(run: Path) -> None:
    """Let no copies continue a run. Collective; rank 0 writes.

    Raises:
        HydraulisError: The run's folder cannot be written (code `file_unwritable`).
    """

    def forget() -> None:
        if (run / MEMORY).exists():
            RunDirectory(run).remove(MEMORY)

    on_rank_zero(forget)


def _name(run: Path, starts: Sequence[str]) -> None:
    RunDirectory(run).write(MEMORY, "\n".join(starts) + "\n")
