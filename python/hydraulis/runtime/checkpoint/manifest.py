"""The manifest of a checkpoint: its content, and the location of each parameter in its files.

The manifest lists every parameter and the intervals of its canonical elements in each shard. Any number of
ranks, with any layout of optimizer shards, can read the checkpoint.
"""

import dataclasses
import errno
import math
import shlex
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Self

from hydraulis.config.layered.table import from_table
from hydraulis.config.model import ModelConfig
from hydraulis.data.sampling.batch_group import BatchGroup
from hydraulis.errors import HydraulisError, InvalidInputError
from hydraulis.files import has_own_digest, unreadable_error, with_digest
from hydraulis.text.documents import parse_json
from hydraulis.text.values import as_toml

FORMAT = "hydraulis.checkpoint/5"
MANIFEST = "manifest.json"
_SUFFIXES = (".json", ".safetensors")
# Errors of a path that has no file, or something else in its place.
_WITHOUT_FILE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL)

Interval = tuple[int, int, int]
"""Shard number, first canonical element, and one past the last canonical element."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DataCursor:
    """The state of the data stream, which determines the following batches.

    Attributes:
        fingerprint: Fingerprint of the data set and of the rules that make sequences of its documents.
        seed: Seed of the order of the sequences.
        tokens_per_batch: Token budget of a global batch; None if its size is in sequences.
        sequences_per_batch: Sequences of a global batch; None if its size is in tokens.
        epoch_end: Treatment of the end of an epoch that does not fill a batch.
        max_tokens: Maximum tokens of a sequence.
        epochs: Number of epochs after which the stream ended for the completed steps; None for no end.
        next_batch: SHA-256 of the next batch's sequence indices, as little-endian 64-bit integers. It detects
            a numpy version whose permutations differ.
        group: Batches planned together (`planner.lookahead`), of which some steps are done and others are
            not; None between two groups.
    """

    fingerprint: str
    seed: int
    tokens_per_batch: int | None
    sequences_per_batch: int | None
    epoch_end: str
    max_tokens: int
    epochs: int | None
    next_batch: str
    group: BatchGroup | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShardRecord:
    """One rank's file.

    Attributes:
        file: Name of the file in the checkpoint's folder.
        bytes: Size in bytes.
        digest: Digest of the content (see `file_digest`).
    """

    file: str
    bytes: int
    digest: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ParameterRecord:
    """The location of one parameter in the shards.

    Attributes:
        name: Name of the master parameter, such as `layers.0.mlp.up_proj.weight`, without the prefix `model.`
            of `model.safetensors`.
        shape: Shape of the whole parameter.
        trained: Whether the checkpoint has the parameter's moments; a frozen parameter has none.
        intervals: The parameter's intervals in ascending order, without gap or overlap.
    """

    name: str
    shape: tuple[int, ...]
    trained: bool
    intervals: tuple[Interval, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The description of a whole checkpoint, without the tensors.

    Attributes:
        version: Version of the package that wrote the checkpoint.
        step: Completed iterations: the number of the last one, counted from 1.
        world_size: Ranks that wrote the checkpoint, one shard each.
        dtype: Type of the master parameters and moments, such as `float32`.
        frozen_dtype: Type of the frozen parameters, such as `bfloat16`.
        model: Configuration of the trained model.
        data: State of the data stream after `step`.
        shards: Files of the shards, by rank.
        parameters: The model's parameters, each once.
        moments: State of the optimizer for each trained element, by the names of its library.
    """

    version: str
    step: int
    world_size: int
    dtype: str
    frozen_dtype: str
    model: ModelConfig
    data: DataCursor
    shards: tuple[ShardRecord, ...]
    parameters: tuple[ParameterRecord, ...]
    moments: tuple[str, ...]

    @classmethod
    def from_json(cls, text: str, source: str) -> Self:
        """Parse and check a manifest.

        Args:
            text: Content of the manifest file.
            source: Path of the file, for messages.

        Raises:
            InvalidInputError: The manifest has another format (code `run_unreadable`).
            HydraulisError: The text is no JSON, or no valid manifest (code `checkpoint_damaged`).
        """
        document = _document(text, source)
        known = document.get("format")
        if known != FORMAT:
            message = (
                f"{source} has format {known!r} and must have '{FORMAT}': "
                "read it with the release that wrote it"
            )
            raise InvalidInputError(message, code="run_unreadable")
        if not has_own_digest(document):
            raise torn(source, "its content does not match its digest, so it was changed")
        del document["format"]
        try:
            manifest = from_table(cls, document, "manifest")
        except InvalidInputError as error:
            raise torn(source, str(error)) from error
        manifest._check_shards(source)
        manifest._check_parameters(source)
        return manifest

    def to_json(self) -> str:
        """Return the manifest as JSON with its digest and a final newline."""
        return with_digest({"format": FORMAT} | dataclasses.asdict(self))

    def _check_shards(self, source: str) -> None:
        if self.step < 1:
            raise torn(source, f"step = {self.step} must be at least 1")
        if self.world_size != len(self.shards):
            raise torn(source, f"world_size = {self.world_size} does not match its {len(self.shards)} shards")
        for shard in self.shards:
            if not _is_plain(shard.file):
                raise torn(source, f"{as_toml(shard.file)} is no plain name of a file in the folder")
        if len({shard.file for shard in self.shards}) < len(self.shards):
            raise torn(source, "two shards have one file")

    def _check_parameters(self, source: str) -> None:
        if len({parameter.name for parameter in self.parameters}) < len(self.parameters):
            raise torn(source, "a parameter occurs twice")
        for parameter in self.parameters:
            elements = math.prod(parameter.shape)
            pieces = [(start, end) for _, start, end in parameter.intervals]
            edges = [(0, 0), *pieces, (elements, elements)]
            is_covered = all(before[1] == after[0] for before, after in pairwise(edges))
            if not is_covered or any(start >= end for start, end in pieces):
                raise torn(source, f"the intervals of {parameter.name} do not cover its {elements} elements")
            if any(not 0 <= shard < len(self.shards) for shard, _, _ in parameter.intervals):
                raise torn(source, f"{parameter.name} is in a shard beyond the {len(self.shards)} there are")


def _is_plain(name: str) -> bool:
    """Whether a name is that of a file in the folder itself."""
    return name not in ("", ".", "..") and "/" not in name and name.isprintable()


def torn(path: str, cause: str) -> HydraulisError:
    """Build the error for a damaged checkpoint, from the path of its folder or of a file in it."""
    given = Path(path)
    # A folder's name may contain a dot; the message must not tell the user to remove its parent folder.
    checkpoint = given.parent if given.suffix in _SUFFIXES else given
    beside = [one.parent for one in checkpoint.parent.glob(f"step-*/{MANIFEST}") if one.parent != checkpoint]
    # Step numbers may exceed eight digits, so the length is compared first.
    newest = max(beside, key=lambda one: (len(one.name), one.name), default=None)
    then = f"{newest} is then the newest" if newest else "none is left then, so start without resuming"
    message = (
        f"checkpoint file {path} is not whole: {cause}; copy the checkpoint again, or remove it (rm -r "
        f"{shlex.quote(str(checkpoint))}): {then}"
    )
    return HydraulisError(message, code="checkpoint_damaged")


def unread(path: Path, error: Exception) -> HydraulisError:
    """Build the error for a file of a checkpoint whose reading failed.

    Args:
        path: Path of the file.
        error: Error of the reading. If the system refuses or fails to read an existing file (missing
            permission, failing disk, too many open files), the checkpoint may be sound.

    Returns:
        An error with the code `file_unreadable` if the checkpoint may be sound, else `checkpoint_damaged`.
    """
    # safetensors raises an OSError without a number.
    if isinstance(error, OSError) and error.errno is not None and error.errno not in _WITHOUT_FILE:
        return unreadable_error(path, error)
    return torn(str(path), str(error))


def _document(text: str, source: str) -> dict[str, object]:
    try:
        document = parse_json(text)
    except ValueError as error:
        raise torn(source, f"it is no JSON ({error})") from error
    if not isinstance(document, Mapping):
        raise torn(source, "it holds no JSON object")
    return dict(document)
