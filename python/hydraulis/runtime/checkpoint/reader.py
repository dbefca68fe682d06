"""Reads intervals of a checkpoint's parameters, written by any number of ranks."""

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
        InvalidInputError: The manifest has another format (code `run_unreadable`).
        HydraulisError: The manifest cannot be read or is invalid (code `checkpoint_damaged`).
    """
    path = checkpoint / MANIFEST
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise torn(str(path), str(error)) from error
    return Manifest.from_json(text, str(path))


def check_shards(checkpoint: Path, manifest: Manifest) -> None:
    """Check that every shard of a checkpoint has the size recorded in the manifest.

    Raises:
        HydraulisError: A shard is missing or has another size (code `checkpoint_damaged`).
    """
    for record in manifest.shards:
        try:
            check_size(checkpoint, record)
        except OSError as error:
            raise torn(str(checkpoint / record.file), str(error)) from error


def check_size(checkpoint: Path, record: ShardRecord) -> None:
    """Check that one shard has the size recorded in the manifest.

    Raises:
        OSError: The shard is missing.
        HydraulisError: The shard has another size (code `checkpoint_damaged`).
    """
    size = (checkpoint / record.file).stat().st_size
    if size != record.bytes:
        raise torn(str(checkpoint / record.file), f"it has {size} bytes and must have {record.bytes}")


class CheckpointReader:
    """Reads the shards of a checkpoint; each shard is opened on its first read.

    The reader implements `ParameterValues` for the master parameters.

    Args:
        checkpoint: The checkpoint's folder.
        manifest: The checkpoint's manifest.
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
        """Read the canonical elements from `start` to `end` of a parameter.

        Args:
            name: Name of the master parameter.
            start: First element.
            end: One past the last element.
            buffer: Buffer of the optimizer shard: `master` or the name of a moment.

        Raises:
            HydraulisError: A shard is missing or damaged (code `checkpoint_damaged`).
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
