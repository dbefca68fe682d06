"""Finds the state that a run goes on from, checks that it belongs to the run, and puts it in place."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from hydraulis.config.model import ModelConfig
from hydraulis.config.run import RunConfig, to_dict
from hydraulis.data.sources.data_files import DataFile, describe_difference
from hydraulis.errors import InvalidInputError
from hydraulis.model.parameters import checkpoint_name
from hydraulis.model.tensors import wide_dtype
from hydraulis.runtime.checkpoint.folder import CheckpointFolder, newest_checkpoint
from hydraulis.runtime.checkpoint.manifest import DataCursor, Manifest, torn
from hydraulis.runtime.checkpoint.position import batch_settings
from hydraulis.runtime.checkpoint.reader import CheckpointReader, read_manifest
from hydraulis.runtime.checkpoint.saver import CHECKPOINT_CONFIG
from hydraulis.runtime.checkpoint.shared import check_shared
from hydraulis.runtime.ranks.rank_zero import from_rank_zero
from hydraulis.runtime.records.run_directory import CORPUS
from hydraulis.runtime.state.optimizer_shard import HomeShare
from hydraulis.runtime.state.parameters import ModelParameters
from hydraulis.text.values import as_toml

LATEST = "latest"
# The digest of a batch that has no sequences.
_NO_BATCH = hashlib.sha256().hexdigest()
# It fixes the first values alone.
_NOT_OF_THE_MODEL = "initializer_range"
# Where and how the index is made.
_NOT_OF_THE_DATA = ("index_directory", "index_processes")


@dataclasses.dataclass(frozen=True, slots=True)
class ResumedRun:
    """A run to go on with.

    Attributes:
        run: its folder.
        checkpoint: the newest complete one.
        manifest: of that.
    """

    run: Path
    checkpoint: Path
    manifest: Manifest

    def check_model(self, config: RunConfig) -> None:
        """Refuse the checkpoint of another model.

        Raises:
            InvalidInputError: the model or the type of its master parameters differs, or a parameter that is
                trained was frozen (code `checkpoint_mismatch`), or what is frozen is no parameter
                (`config_value`).
            HydraulisError: its parameters are not those of its model (code `checkpoint_damaged`).
        """
        _check_model(self, config)

    def check_unread(self, config: RunConfig, files: Sequence[DataFile]) -> None:
        """Refuse settings that make other batches, and files that cannot hold the data, before any is read.

        Args:
            config: of the run.
            files: of its data.

        Raises:
            InvalidInputError: they are not those that the run had (code `checkpoint_mismatch`).
        """
        for name, now in batch_settings(config).items():
            if now != getattr(self.manifest.data, name):
                raise self._other_data(name, now)
        differs = describe_difference(self._files(files), files)
        if differs is not None:
            message = (
                f"checkpoint {self.checkpoint} was trained on other data: {differs}; put the files back as "
                "they were, or start without resuming"
            )
            raise InvalidInputError(message, code="checkpoint_mismatch")

    def check(self, config: RunConfig, cursor: DataCursor) -> None:
        """Refuse the checkpoint of another model, or one that was made on other data.

        Args:
            config: of the run.
            cursor: of its data, at the checkpoint's step.

        Raises:
            HydraulisError: as `check_model`, or the data or its order differs (code `checkpoint_mismatch`).
        """
        self.check_model(config)
        for field in dataclasses.fields(DataCursor):
            before, now = (getattr(data, field.name) for data in (self.manifest.data, cursor))
            if before != now and before == _NO_BATCH:
                message = (
                    f"checkpoint {self.checkpoint} ended a run that trained all its data (train.epochs), "
                    "with a smaller last batch: no batch is left; start a new run from its exported model"
                )
                raise InvalidInputError(message, code="checkpoint_mismatch")
            if before != now:
                why = self._what_differs(config) if field.name == "fingerprint" else ""
                raise self._other_data(field.name, now, why)

    def _other_data(self, name: str, now: object, why: str = "") -> InvalidInputError:
        before = as_toml(getattr(self.manifest.data, name))
        message = (
            f"checkpoint {self.checkpoint} has {_DATA_NAMES[name]} = {before} and the run {as_toml(now)}{why}"
            ": its batches would differ; set it back, or start without resuming"
        )
        return InvalidInputError(message, code="checkpoint_mismatch")

    def _files(self, now: Sequence[DataFile]) -> Sequence[DataFile]:
        """Read which files the run had; those of now where it does not say: the data are compared later."""
        try:
            known = json.loads((self.run / CORPUS).read_text(encoding="utf-8"))["files"]
            return [DataFile(**file) for file in known]
        except (OSError, ValueError, KeyError, TypeError):
            return now

    def _what_differs(self, config: RunConfig) -> str:
        """Name the keys of the section `data` that the checkpoint's configuration had otherwise."""
        try:
            before = json.loads((self.checkpoint / CHECKPOINT_CONFIG).read_text(encoding="utf-8"))["data"]
        except (OSError, ValueError, KeyError):
            # It is there for people: they may have removed it.
            return ""
        now = json.loads(json.dumps(to_dict(config)["data"]))
        others = [key for key in now if key not in _NOT_OF_THE_DATA and before.get(key) != now[key]]
        if not others:
            return " (of the section data nothing differs, so the files do)"
        changes = (f"data.{key} was {as_toml(before.get(key))} and is {as_toml(now[key])}" for key in others)
        return f" ({'; '.join(changes)})"

    def nothing_left(self, num_steps: int) -> str | None:
        """Say that a run of so many iterations has none left to train; None if it has."""
        done = self.manifest.step
        if done < num_steps:
            return None
        if done == num_steps:
            return f"all steps are done, {num_steps:,} of them: there is nothing left to train"
        return f"{done:,} steps are done and {num_steps:,} wanted: there is nothing left to train"

    def reader(self) -> CheckpointReader:
        """Open the checkpoint."""
        return CheckpointReader(self.checkpoint, self.manifest)


def find_resumed(resume: str, directory: str) -> ResumedRun | None:
    """Find the newest complete checkpoint of the run that is meant. Collective.

    Args:
        resume: the folder of a run, or `latest`, or empty for none.
        directory: what `output.directory` says.

    Returns:
        The run; None if none is meant, or if `latest` finds no checkpoint.

    Raises:
        InvalidInputError: the folder has no complete checkpoint (code `checkpoint_missing`), its format is
            another one (`run_unreadable`), or not all ranks see it (`folder_not_shared`).
        HydraulisError: its manifest is not whole (code `checkpoint_damaged`).
    """
    if not resume:
        return None
    found = from_rank_zero(lambda: str(newest_of(resume, directory) or ""))
    if not found:
        return None
    checkpoint = Path(found)
    run = checkpoint.parents[1]
    check_shared(run)
    text = from_rank_zero(lambda: read_manifest(checkpoint).to_json())
    return ResumedRun(run, checkpoint, Manifest.from_json(text, found))


def restore_moments(reader: CheckpointReader, shares: Sequence[HomeShare]) -> None:
    """Fill this rank's home buffers but for the master parameters, which are read when a share is made.

    Args:
        reader: of the checkpoint.
        shares: of this rank; what of them is trained was trained before (see `ResumedRun.check`).

    Raises:
        HydraulisError: a shard is not whole (code `checkpoint_damaged`).
    """
    for share in shares:
        moments = {kind: flat for kind, flat in share.buffers().items() if kind != "master"}
        for held in share.slices:
            name = share.parameters.names[held.parameter]
            for kind, flat in moments.items():
                place = slice(held.offset, held.offset + held.end - held.start)
                flat[place] = reader.read(name, held.start, held.end, kind)


def newest_of(resume: str, directory: str) -> Path | None:
    """Find the newest complete checkpoint of the run that is meant, on one rank.

    Args:
        resume: the folder of a run, or `latest`.
        directory: what `output.directory` says.

    Returns:
        It; None if `latest` finds none.

    Raises:
        InvalidInputError: the folder has no complete checkpoint (code `checkpoint_missing`).
    """
    if resume != LATEST:
        return newest_checkpoint(Path(resume))
    for run in reversed(_runs(Path(directory))):
        newest = CheckpointFolder.of_run(run).newest()
        if newest is not None:
            return newest
    return None


def _runs(first: Path) -> list[Path]:
    """List the runs that `output.directory` named so far, in the order in which they were begun."""
    numbered = re.compile(re.escape(first.name) + r"-(\d+)")
    matches = [(numbered.fullmatch(path.name), path) for path in first.parent.glob("*")]
    later = sorted((int(match[1]), path) for match, path in matches if match)
    return [first, *(path for _, path in later)]


def _check_model(resumed: ResumedRun, config: RunConfig) -> None:
    manifest, model = resumed.manifest, config.model
    for field in dataclasses.fields(ModelConfig):
        before, now = getattr(manifest.model, field.name), getattr(model, field.name)
        if field.name != _NOT_OF_THE_MODEL and before != now:
            _refuse_model(resumed, f"model.{field.name}", before, now)
    shapes = {name: tuple(shape) for name, shape in ModelParameters.of(model).shapes.items()}
    if {record.name: record.shape for record in manifest.parameters} != shapes:
        raise torn(str(resumed.checkpoint), "its parameters are not those of its model")
    wide = wide_dtype(getattr(torch, config.train.dtype))
    dtype = str(wide).removeprefix("torch.")
    if manifest.dtype != dtype:
        _refuse_model(resumed, "the type of master parameters (by train.dtype)", manifest.dtype, dtype)
    _check_thawed(manifest, ModelParameters.parted(model, config.train.frozen)[0])


def _check_thawed(manifest: Manifest, parameters: ModelParameters) -> None:
    """Refuse to train what was frozen."""
    trained = {record.name for record in manifest.parameters if record.trained}
    for name in parameters.names:
        if name not in trained:
            message = (
                f"{checkpoint_name(name)} is trained and was frozen in the checkpoint, which has no "
                "optimizer state of it; keep it in train.frozen, or start a new run from an exported model"
            )
            raise InvalidInputError(message, code="checkpoint_mismatch")


def _refuse_model(resumed: ResumedRun, name: str, before: object, now: object) -> None:
    message = (
        f"checkpoint {resumed.checkpoint} has {name} = {as_toml(before)} and the run has {as_toml(now)}; "
        "set it back, or start without resuming"
    )
    raise InvalidInputError(message, code="checkpoint_mismatch")


_DATA_NAMES = {
    "fingerprint": "the data's fingerprint",
    "seed": "train.seed",
    "tokens_per_batch": "data.tokens_per_batch",
    "sequences_per_batch": "data.sequences_per_batch",
    "epoch_end": "data.epoch_end",
    "max_tokens": "data.max_tokens",
    "next_batch": "the next batch's digest, of sequences in numpy's order,",
}
