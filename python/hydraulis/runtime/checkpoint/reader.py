"""Reads intervals of a checkpoint's parameters, written by any number of ranks."""

import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hydraulis.errors import HydraulisError
from hydraulis.files import file_digest, read_regular
from hydraulis.runtime.checkpoint.folder import step_of
from hydraulis.runtime.checkpoint.manifest import MANIFEST, Manifest, ShardRecord, torn, unread
from hydraulis.runtime.checkpoint.shard import tensor_name
from hydraulis.runtime.state.optimizer_shard import FROZEN, MASTER

# Shards that one process hashes at the same time.
_MOST_READERS = 4


class StateValues(Protocol):
    """Values of a run's state, of which a rank reads its optimizer shard only."""

    def read(self, name: str, start: int, end: int, moment: str | None = None) -> Tensor:
        """Return the canonical elements from `start` to `end` of a parameter or of a moment of it."""


def read_manifest(checkpoint: Path) -> Manifest:
    """Read the manifest of a checkpoint.

    Raises:
        InvalidInputError: The manifest has another format (code `run_unreadable`), or the system refuses to
            read it (`file_unreadable`).
        HydraulisError: The manifest is missing, is invalid, or is that of another step than the folder's name
            says (code `checkpoint_damaged`).
    """
    path = checkpoint / MANIFEST
    try:
        text = read_regular(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise unread(path, error) from error
    manifest = Manifest.from_json(text, str(path))
    step = step_of(checkpoint)
    if step not in (None, manifest.step):
        raise torn(str(path), f"it is that of step {manifest.step} in the folder of step {step}")
    return manifest


def check_shards(checkpoint: Path, manifest: Manifest) -> None:
    """Check that every shard of a checkpoint can be opened and has the size recorded in the manifest.

    Raises:
        InvalidInputError: The system refuses to open a shard (code `file_unreadable`).
        HydraulisError: A shard is missing or has another size (code `checkpoint_damaged`).
    """
    for record in manifest.shards:
        try:
            check_size(checkpoint, record)
        except OSError as error:
            raise unread(checkpoint / record.file, error) from error


def verify_shards(checkpoint: Path, manifest: Manifest, shards: Sequence[int]) -> None:
    """Check that shards of a checkpoint have the content that was written; reads them whole.

    Args:
        checkpoint: The checkpoint's folder.
        manifest: The checkpoint's manifest.
        shards: Numbers of the shards.

    Raises:
        InvalidInputError: The system refuses to read a shard (code `file_unreadable`).
        HydraulisError: A shard is missing, or has another size or content (code `checkpoint_damaged`).
    """

    def verify(number: int) -> None:
        record = manifest.shards[number]
        try:
            check_size(checkpoint, record)
            digest = file_digest(checkpoint / record.file)
        except OSError as error:
            raise unread(checkpoint / record.file, error) from error
        if digest != record.digest:
            raise torn(
                str(checkpoint / record.file), "its content does not match its digest, so it was changed"
            )

    # Hashing releases the GIL.
    with ThreadPoolExecutor(_MOST_READERS, thread_name_prefix="digest") as readers:
        for _ in readers.map(verify, shards):
            pass


def check_size(checkpoint: Path, record: ShardRecord) -> None:
    """Check that one shard is a file that can be opened, with the size recorded in the manifest.

    Raises:
        OSError: The shard is missing or cannot be opened.
        HydraulisError: The shard is no file or has another size (code `checkpoint_damaged`).
    """
    path = checkpoint / record.file
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise torn(str(path), "it is no regular file")
    if status.st_size != record.bytes:
        raise torn(str(path), f"it has {status.st_size} bytes and must have {record.bytes}")
    # safetensors calls each file that cannot be opened missing.
    with path.open("rb"):
        pass


class CheckpointReader:
    """Reads the shards of a checkpoint; each shard is opened on its first read.

    The reader implements `ParameterValues`: master parameters, and frozen parameters in their own type.

    Args:
        checkpoint: The checkpoint's folder.
        manifest: The checkpoint's manifest.
    """

    def __init__(self, checkpoint: Path, manifest: Manifest) -> None:
        self._checkpoint = checkpoint
        self._manifest = manifest
        self._records = {record.name: record for record in manifest.parameters}
        self._shards: dict[int, Any] = {}
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shards.clear()
        self._open.close()

    def read(self, name: str, start: int, end: int, moment: str | None = None) -> Tensor:
        """Read the canonical elements from `start` to `end` of a parameter.

        Args:
            name: Name of the master parameter.
            start: First element.
            end: One past the last element.
            moment: Name of a moment; None for the parameter itself.

        Raises:
            InvalidInputError: The system refuses to read a shard (code `file_unreadable`).
            HydraulisError: A shard is missing or damaged (code `checkpoint_damaged`).
        """
        record = self._records[name]
        buffer = moment or (MASTER if record.trained else FROZEN)
        pieces = []
        for shard, first, last in record.intervals:
            low, high = max(start, first), min(end, last)
            if low < high:
                wanted = slice(low - first, high - first)
                pieces.append(self._piece(shard, (buffer, name), range(first, last), wanted))
        return torch.cat(pieces) if len(pieces) > 1 else pieces[0]

    def _piece(self, shard: int, place: tuple[str, str], interval: range, wanted: slice) -> Tensor:
        """Read the wanted elements of an interval of a buffer, counted from the interval's first element."""
        name = tensor_name(*place)
        dtype = self._manifest.frozen_dtype if place[0] == FROZEN else self._manifest.dtype
        try:
            stored = self._shard(shard).get_slice(name)
            shape = stored.get_shape()
            piece: Tensor | None = stored[wanted] if shape == [len(interval)] else None
        except (OSError, SafetensorError) as error:
            raise unread(self._checkpoint / self._manifest.shards[shard].file, error) from error
        if piece is None:
            raise self._torn(shard, f"{name} has shape {shape} and must have [{len(interval)}]")
        if str(piece.dtype) != f"torch.{dtype}":
            raise self._torn(shard, f"{name} has type {piece.dtype} and must have {dtype}")
        return piece

    def _shard(self, number: int) -> Any:
        if number not in self._shards:
            record = self._manifest.shards[number]
            check_size(self._checkpoint, record)
            opened = safe_open(self._checkpoint / record.file, framework="pt")
            self._shards[number] = self._open.enter_context(opened)
        return self._shards[number]

    def _torn(self, shard: int, cause: str) -> HydraulisError:
        return torn(str(self._checkpoint / self._manifest.shards[shard].file), cause)
