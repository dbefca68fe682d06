"""What a checkpoint holds and where: the one file that makes a folder a checkpoint.

It names every parameter and the intervals of its canonical elements that each shard has, so a checkpoint can
be read by any number of ranks, in any home layout.
"""

import dataclasses
import json
import shlex
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Self

from hydraulis.config.layered.table import from_table
from hydraulis.config.model import ModelConfig
from hydraulis.errors import HydraulisError, InvalidInputError

FORMAT = "hydraulis.checkpoint/1"
MANIFEST = "manifest.json"
_SUFFIXES = (".json", ".safetensors")

Interval = tuple[int, int, int]
"""The number of a shard, and the first and the one past the last canonical element that it has."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DataCursor:
    """Which batches come next.

    Attributes:
        fingerprint: of the data set, and of how sequences are made of its documents.
        seed: of their order.
        tokens_per_batch: the budget of a global batch; None if sequences are counted.
        sequences_per_batch: likewise the other way round.
        epoch_end: what becomes of the end of an epoch that does not fill a batch.
        max_tokens: of the longest sequence.
        next_batch: SHA-256 of the sequences of the next batch, as little-endian 64-bit integers: numpy's
            permutations may change with its version, and this tells.
    """

    fingerprint: str
    seed: int
    tokens_per_batch: int | None
    sequences_per_batch: int | None
    epoch_end: str
    max_tokens: int
    next_batch: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShardRecord:
    """One rank's file."""

    file: str
    bytes: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ParameterRecord:
    """Where one parameter is.

    Attributes:
        name: of the master parameter, such as `layers.0.mlp.up_proj.weight`: without the `model.` in front
            that `model.safetensors` has.
        shape: of the whole.
        trained: whether moments are there beside it; a frozen one has none.
        intervals: in ascending order, without gap or overlap.
    """

    name: str
    shape: tuple[int, ...]
    trained: bool
    intervals: tuple[Interval, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A whole checkpoint, but for the numbers themselves.

    Attributes:
        version: of the package that wrote it.
        step: iterations that were completed: the number of the last one, counted from 1.
        world_size: ranks that wrote it, a shard each.
        dtype: of master parameters and moments.
        model: that was trained.
        data: which batches come next.
        shards: by rank.
        parameters: of the model, each once.
    """

    version: str
    step: int
    world_size: int
    dtype: str
    model: ModelConfig
    data: DataCursor
    shards: tuple[ShardRecord, ...]
    parameters: tuple[ParameterRecord, ...]

    @classmethod
    def from_json(cls, text: str, source: str) -> Self:
        """Read a manifest.

        Args:
            text: what the file holds.
            source: its path, for messages.

        Raises:
            InvalidInputError: it is of another format (code `run_unreadable`).
            HydraulisError: it is no JSON, or not what a manifest must be (code `checkpoint_damaged`).
        """
        document = _document(text, source)
        known = document.pop("format", None)
        if known != FORMAT:
            message = (
                f"{source} has format {known!r} and must have '{FORMAT}': "
                "read it with the release that wrote it"
            )
            raise InvalidInputError(message, code="run_unreadable")
        try:
            manifest = from_table(cls, document, "manifest")
        except InvalidInputError as error:
            raise torn(source, str(error)) from error
        manifest._check_intervals(source)
        return manifest

    def to_json(self) -> str:
        """Give the manifest's text."""
        return json.dumps({"format": FORMAT} | dataclasses.asdict(self)) + "\n"

    def _check_intervals(self, source: str) -> None:
        for parameter in self.parameters:
            elements = 1
            for size in parameter.shape:
                elements *= size
            edges = [(0, 0), *((start, end) for _, start, end in parameter.intervals), (elements, elements)]
            if any(before[1] != after[0] for before, after in pairwise(edges)):
                raise torn(source, f"the intervals of {parameter.name} do not cover its {elements} elements")
            if any(not 0 <= shard < len(self.shards) for shard, _, _ in parameter.intervals):
                raise torn(source, f"{parameter.name} is in a shard beyond the {len(self.shards)} there are")


def torn(path: str, cause: str) -> HydraulisError:
    """Make the error of a checkpoint that is not whole, from the path of it or of a file in it."""
    given = Path(path)
    # A folder may have a dot in its name, and what is above it must not be named for removal.
    checkpoint = given.parent if given.suffix in _SUFFIXES else given
    beside = [one.parent for one in checkpoint.parent.glob(f"step-*/{MANIFEST}") if one.parent != checkpoint]
    # By their numbers, which may have more digits than they are filled up to.
    newest = max(beside, key=lambda one: (len(one.name), one.name), default=None)
    then = f"{newest} is then the newest" if newest else "none is left then, so start without resuming"
    message = (
        f"checkpoint file {path} is not whole: {cause}; copy the checkpoint again, or remove it (rm -r "
        f"{shlex.quote(str(checkpoint))}): {then}"
    )
    return HydraulisError(message, code="checkpoint_damaged")


def _document(text: str, source: str) -> dict[str, object]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise torn(source, f"it is no JSON ({error})") from error
    if not isinstance(document, Mapping):
        raise torn(source, "it holds no JSON object")
    return dict(document)
