"""The folder in a node's memory with the copies of one start of a run, and the names of its files."""

import json
import os
import re
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from hydraulis.errors import InvalidInputError
from hydraulis.files import read_regular, replace_file
from hydraulis.runtime.ranks.liveness.check import ENDED, Process
from hydraulis.runtime.records.run_directory import writing
from hydraulis.text.documents import parse_json
from hydraulis.text.values import free_mib, needed_mib

_SETTING = "checkpoint.memory_folder"
_OWNER = "owner.json"
_RUN = "run"
# Errors of reading an owner that is missing or damaged.
_DAMAGED = (OSError, ValueError, TypeError, KeyError)
_NAME = re.compile(r"(frozen|step-(\d+))\.shard-(\d+)-of-(\d+)\.by-(\d+)\.safetensors")


@dataclass(frozen=True, slots=True)
class CopyName:
    """The name of a copy of one rank's shard.

    Attributes:
        step: Completed iterations; None for the frozen parameters, which no step changes.
        shard: Rank that owns the shard.
        world_size: Number of ranks of the start.
        holder: Rank that wrote the file: the owner, or the rank that has the twin.
    """

    step: int | None
    shard: int
    world_size: int
    holder: int

    @classmethod
    def parse(cls, name: str) -> "CopyName | None":
        """Return the parts of a file's name; None for another file."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        step = None if match[2] is None else int(match[2])
        return cls(step, int(match[3]), int(match[4]), int(match[5]))

    def __str__(self) -> str:
        """Return the file's name."""
        kind = "frozen" if self.step is None else f"step-{self.step:08d}"
        of = f"shard-{self.shard:05d}-of-{self.world_size:05d}"
        return f"{kind}.{of}.by-{self.holder:05d}.safetensors"


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of the copies on a node.

    Attributes:
        run: Path of the run's folder, without links.
        launcher: Process that started the ranks which write the copies, or those of them that came first.
    """

    run: str
    launcher: Process


@dataclass(frozen=True, slots=True)
class MemoryFolder:
    """The copies of one start on this node.

    Attributes:
        base: Value of `checkpoint.memory_folder`.
        start: Name of the start, a random one.
    """

    base: Path
    start: str

    @property
    def path(self) -> Path:
        """The path of the folder."""
        return self.base / f"{_prefix()}{self.start}"

    def create(self, run: Path) -> None:
        """Create the folder, for this user alone, and record the launcher of this rank as its owner.

        Args:
            run: Folder of the run.

        Raises:
            HydraulisError: The folder cannot be written (code `file_unwritable`).
            InvalidInputError: Another user has the folder's name (code `file_unwritable`).
        """
        is_first = False
        with writing(self.path, _SETTING):
            # One of the node's ranks creates the folder, and writes its owner.
            with suppress(FileExistsError):
                self.path.mkdir(mode=0o700)
                is_first = True
            status = self.path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            message = f"{self.path} is not a folder of this user; set {_SETTING} to another folder"
            raise InvalidInputError(message, code="file_unwritable")
        if not is_first:
            return
        with writing(self.path, _SETTING), replace_file(self.path / _OWNER) as unfinished:
            owner = {_RUN: str(run.resolve()), **asdict(Process.launcher())}
            unfinished.write_text(json.dumps(owner), encoding="utf-8")

    def copies(self) -> list[CopyName]:
        """List the files of this start on this node."""
        try:
            names = [CopyName.parse(path.name) for path in self.path.iterdir()]
        except OSError:
            return []
        return [name for name in names if name is not None]

    def owner(self) -> Owner | None:
        """Return the owner of the copies on this node; None if its file is missing or damaged."""
        with suppress(*_DAMAGED):
            owner = _owner(self.path)
            return Owner(str(owner[_RUN]), _launcher(owner))
        return None

    def file(self, copy: CopyName) -> Path:
        """Return the path of a file."""
        return self.path / str(copy)

    def num_bytes(self) -> int:
        """Return the bytes of this start's files on this node."""
        sizes = []
        for copy in self.copies():
            with suppress(OSError):
                sizes.append(self.file(copy).stat().st_size)
        return sum(sizes)

    def remove_other_steps(self, step: int) -> None:
        """Remove all files but the copies of one step and of the frozen parameters.

        Files that a killed process has not completed go too.

        Args:
            step: Step whose copies stay.
        """
        for path in self.path.glob("*"):
            copy = CopyName.parse(path.name)
            if path.name != _OWNER and (copy is None or copy.step not in (None, step)):
                # Several ranks of a node remove the same files.
                with suppress(OSError):
                    path.unlink()

    def remove(self) -> None:
        """Remove the folder and its files."""
        shutil.rmtree(self.path, ignore_errors=True)

    def remove_abandoned(self) -> None:
        """Remove the folders of earlier starts by this rank's launcher, and of launchers that have ended."""
        for path in self._abandoned():
            shutil.rmtree(path, ignore_errors=True)

    def abandoned_starts(self) -> dict[str, Path]:
        """Return the folder of the run of each start whose copies `remove_abandoned` would remove."""
        starts = {}
        for path in self._abandoned():
            with suppress(*_DAMAGED):
                starts[path.name.removeprefix(_prefix())] = Path(str(_owner(path)[_RUN]))
        return starts

    def _abandoned(self) -> list[Path]:
        others = (path for path in self.base.glob(f"{_prefix()}*") if path != self.path)
        return [path for path in others if _is_own(path) and _is_abandoned(path)]

    def needed_bytes(self, first: int, most: int, previous: "MemoryFolder | None" = None) -> int:
        """Return the bytes that must be free for the copies of this node's ranks.

        The copies of the previous start and of abandoned ones go when the first copy is whole, before the
        second one begins (see `RunStart.has_whole_copy`). Until then there is one new copy in addition.

        Args:
            first: Bytes of the first copy.
            most: Most bytes of copies at once.
            previous: Folder of the copies that the run continues from; None for another start.
        """
        replaced = {path.name.removeprefix(_prefix()) for path in self._abandoned()}
        if previous is not None:
            replaced.add(previous.start)
        return max(first, most - sum(MemoryFolder(self.base, start).num_bytes() for start in replaced))

    def require_room(self, first: int, most: int, previous: "MemoryFolder | None" = None) -> None:
        """Check that the folder has room for the copies of this node's ranks.

        Args:
            first: Bytes of the first copy.
            most: Most bytes of copies at once.
            previous: Folder of the copies that the run continues from; None for another start.

        Raises:
            InvalidInputError: The folder has too little room (code `file_unwritable`).
        """
        free = shutil.disk_usage(self.path).free
        needed = self.needed_bytes(first, most, previous)
        if needed <= free:
            return
        # Without the setting, or with another folder, the run would not continue from its copies.
        remedy = (
            "make room, or set it to '' for no copies"
            if previous is None
            else "remove other files from it; the run continues from the copies there, so keep the setting"
        )
        message = (
            f"{_SETTING} = '{self.base}' has {free_mib(free)} MiB of room, and new copies of this node's "
            f"ranks need {needed_mib(needed)}: {remedy}"
        )
        raise InvalidInputError(message, code="file_unwritable")


def _is_own(path: Path) -> bool:
    """Return whether a folder is of this user; anyone can write into the memory of a node."""
    try:
        return path.lstat().st_uid == os.getuid()
    except OSError:
        return False


def _is_abandoned(path: Path) -> bool:
    """Return whether no launcher continues from a folder any more, as far as this node knows."""
    try:
        process = _launcher(_owner(path))
    except _DAMAGED:
        return False
    own = Process.launcher()
    # The folder is this node's: a launcher of an earlier start of the node has ended.
    is_earlier = process.host == own.host and process.boot != own.boot
    return process == own or is_earlier or process.state() == ENDED


def _owner(path: Path) -> dict[str, Any]:
    """Read the run and the launcher of a folder."""
    return dict(parse_json(read_regular(path / _OWNER).decode()))


def _launcher(owner: Mapping[str, Any]) -> Process:
    return Process(**{field.name: owner[field.name] for field in fields(Process)})


def _prefix() -> str:
    return f"hydraulis-{os.getuid()}-"
