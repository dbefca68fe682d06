"""Reads slices of a checkpoint, whatever the number of ranks that wrote it."""

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hydraulis.errors import HydraulisError
from hydraulis.runtime.checkpoint.manifest import MANIFEST, Manifest, ShardRecord, torn
from hydraulis.runtime.checkpoint.shard import tensor_name


def read_manifest(checkpoint: Path) -> Manifest:
    """Read the manifest of a checkpoint.

    Raises:
        InvalidInputError: it is of another format (code `run_unreadable`).
        HydraulisError: it cannot be read, or is not what a manifest must be (code `checkpoint_damaged`).
    """
    path = checkpoint / MANIFEST
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise torn(str(path), str(error)) from error
    return Manifest.from_json(text, str(path))


def check_shards(checkpoint: Path, manifest: Manifest) -> None:
    """Refuse a checkpoint whose shards are not all as long as they were written.

    Raises:
        HydraulisError: one is not there, or shorter or longer (code `checkpoint_damaged`).
    """
    for record in manifest.shards:
        try:
            check_size(checkpoint, record)
        except OSError as error:
            raise torn(str(checkpoint / record.file), str(error)) from error


def check_size(checkpoint: Path, record: ShardRecord) -> None:
    """Refuse a shard that is not as long as it was written.

    Raises:
        OSError: it is not there.
        HydraulisError: it is shorter or longer (code `checkpoint_damaged`).
    """
    size = (checkpoint / record.file).stat().st_size
    if size != record.bytes:
        raise torn(str(checkpoint / record.file), f"it has {size} bytes and must have {record.bytes}")


class CheckpointReader:
    """The shards of a checkpoint, opened when they are first needed, and only as far as they are.

    It is a `ParameterValues` of the master parameters.

    Args:
        checkpoint: the folder.
        manifest: of it.
    """

    def __init__(self, checkpoint: Path, manifest: Manifest) -> None:
        self._checkpoint = checkpoint
        self._manifest = manifest
        self._intervals = {record.name: record.intervals for record in manifest.parameters}
        self._shards: dict[int, Any] = {}
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shards.clear()
        self._open.close()

    def read(self, name: str, start: int, end: int, buffer: str = "master") -> Tensor:
        """Give the canonical elements from `start` to `end` of a parameter.

        Args:
            name: of the master parameter.
            start: the first element.
            end: one past the last.
            buffer: the home buffer that is meant.

        Raises:
            HydraulisError: a shard is not there, or not whole (code `checkpoint_damaged`).
        """
        pieces = []
        for shard, first, last in self._intervals[name]:
            low, high = max(start, first), min(end, last)
            if low < high:
                pieces.append(self._piece(shard, tensor_name(buffer, name), low - first, high - first))
        return torch.cat(pieces) if len(pieces) > 1 else pieces[0]

    def _piece(self, shard: int, name: str, start: int, end: int) -> Tensor:
        try:
            piece: Tensor = self._shard(shard).get_slice(name)[start:end]
        except (OSError, SafetensorError) as error:
            raise self._torn(shard, str(error)) from error
        if len(piece) != end - start:
            raise self._torn(shard, f"{name} has fewer than {end} elements")
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
