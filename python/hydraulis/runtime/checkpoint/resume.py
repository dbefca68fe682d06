"""Resumes a run: finds its checkpoint, checks that it matches the configuration, and restores the moments."""

import dataclasses
import json
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import torch.distributed as dist

from hydraulis._core import OptimizerShards
from hydraulis.config.layered.table import from_table
from hydraulis.config.run import RunConfig, to_dict
from hydraulis.data.sources.data_files import DataFile, describe_changed_times, describe_difference
from hydraulis.errors import InvalidInputError
from hydraulis.files import read_regular
from hydraulis.runtime.agreement.run_facts import NODE_KEYS
from hydraulis.runtime.checkpoint.folder import CheckpointFolder, newest_checkpoint
from hydraulis.runtime.checkpoint.manifest import Manifest
from hydraulis.runtime.checkpoint.model_check import check_model
from hydraulis.runtime.checkpoint.position import DataPosition, batch_settings
from hydraulis.runtime.checkpoint.reader import (
    CheckpointReader,
    StateValues,
    read_manifest,
    verify_shards,
)
from hydraulis.runtime.checkpoint.saver import CHECKPOINT_CONFIG
from hydraulis.runtime.checkpoint.shared import check_shared
from hydraulis.runtime.ranks.every_rank import on_every_rank
from hydraulis.runtime.ranks.rank_zero import from_rank_zero
from hydraulis.runtime.records.run_config import changed_settings
from hydraulis.runtime.records.run_directory import CORPUS, RUN_CONFIG
from hydraulis.runtime.state.optimizer_shard import OptimizerShard, elements_of
from hydraulis.runtime.state.parameters import ModelParameters
from hydraulis.text.documents import parse_json
from hydraulis.text.values import as_toml, did_you_mean

LATEST = "latest"


@dataclasses.dataclass(frozen=True, slots=True)
class _DataFiles:
    """The list of data files in a run's `corpus.json`."""

    files: tuple[DataFile, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ResumedRun:
    """A run to resume.

    Attributes:
        run: The run's folder.
        checkpoint: Folder of the state to continue from: the run's newest complete checkpoint, or copies in
            memory.
        manifest: Manifest of that state.
    """

    run: Path
    checkpoint: Path
    manifest: Manifest

    def check_model(self, config: RunConfig) -> None:
        """Check that the checkpoint has the configured model.

        Raises:
            InvalidInputError: The model, the type of its master parameters or the optimizer's state differs,
                or a trained parameter was frozen in the checkpoint (code `checkpoint_mismatch`), or a frozen
                name is no parameter (`config_value`).
            HydraulisError: The checkpoint's parameters do not match its model (code `checkpoint_damaged`).
        """
        check_model(self.checkpoint, self.manifest, config)

    def check_unread(self, config: RunConfig, files: Sequence[DataFile]) -> None:
        """Check the batch settings and data files against the checkpoint, before any data are read.

        Args:
            config: The run's configuration.
            files: Files of the run's data.

        Raises:
            InvalidInputError: A setting or a file differs (code `checkpoint_mismatch`).
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

    def describe_changed_files(self, files: Sequence[DataFile]) -> str:
        """Describe mapped files that were changed since the run; see `describe_changed_times`."""
        return describe_changed_times(self._files(files), files)

    def check(self, config: RunConfig, position: DataPosition) -> None:
        """Check that the checkpoint has the configured model and data.

        Data and order are not compared where the checkpoint is beyond the run's last step: no batch is left,
        and the sampler would walk through all batches up to that step.

        Args:
            config: The run's configuration, with its number of steps.
            position: The run's position in its data.

        Raises:
            HydraulisError: The errors of `check_model`, or the data or their order differ (code
                `checkpoint_mismatch`).
        """
        self.check_model(config)
        if self.manifest.step > config.train.num_steps:
            return
        # The last batch of the data is smaller than that of the same step with more epochs.
        epochs = self.manifest.data.epochs
        earlier = position if epochs == config.train.epochs else position.with_epochs(epochs)
        cursor = earlier.cursor(self.manifest.step)
        for name in _DATA_NAMES:
            before, now = (getattr(data, name) for data in (self.manifest.data, cursor))
            if before != now:
                why = self._what_differs(config) if name == "fingerprint" else ""
                raise self._other_data(name, now, why)
        if earlier is not position:
            self._check_epochs(config, earlier, position)

    def _check_epochs(self, config: RunConfig, earlier: DataPosition, position: DataPosition) -> None:
        """Check that another `train.epochs` keeps the trained batches and the moves of the group.

        Args:
            config: The run's configuration.
            earlier: Position with the epochs of the completed steps.
            position: Position with those of the run.
        """
        step, group, before = self.manifest.step, self.manifest.data.group, self.manifest.data.epochs
        change = f"train.epochs was {as_toml(before)} and is {as_toml(config.train.epochs)}"
        if len(earlier.batch(step)) < len(position.batch(step)):
            message = (
                f"checkpoint {self.checkpoint} has trained all its data with a smaller last batch, and "
                f"{change}; start a new run from its exported model"
            )
            raise InvalidInputError(message, code="checkpoint_mismatch")
        lost = None if group is None else group.missing(position.batch)
        if group is not None and lost is not None:
            message = (
                f"checkpoint {self.checkpoint} is within the lookahead group of steps {group.first_step} to "
                f"{group.last_step}, and {change}: the data would end before sequence {lost[1]} of batch "
                f"{lost[0]}, which the group moved to step {lost[2]}; set train.epochs back until step "
                f"{group.last_step} is done"
            )
            raise InvalidInputError(message, code="checkpoint_mismatch")

    def _other_data(self, name: str, now: object, why: str = "") -> InvalidInputError:
        before = as_toml(getattr(self.manifest.data, name))
        message = (
            f"checkpoint {self.checkpoint} has {_DATA_NAMES[name]} = {before} and the run {as_toml(now)}{why}"
            ": its batches would differ; set it back, or start without resuming"
        )
        return InvalidInputError(message, code="checkpoint_mismatch")

    def _files(self, now: Sequence[DataFile]) -> Sequence[DataFile]:
        """Read the list of the run's data files; return `now` if it is unreadable, since `check` follows."""
        try:
            known = parse_json(read_regular(self.run / CORPUS).decode())["files"]
            return from_table(_DataFiles, {"files": known}, "corpus").files
        except (OSError, ValueError, KeyError, TypeError):
            return now

    def _what_differs(self, config: RunConfig) -> str:
        """Describe the keys of the section `data` that differ from the checkpoint's configuration."""
        try:
            before = dict(parse_json(read_regular(self.checkpoint / CHECKPOINT_CONFIG).decode())["data"])
        except (OSError, ValueError, KeyError, TypeError):
            # The file is for human readers, who may have removed it.
            return ""
        now = json.loads(json.dumps(to_dict(config)["data"]))
        others = [key for key in now if key not in NODE_KEYS and before.get(key) != now[key]]
        if not others:
            return " (of the section data nothing differs, so the files do)"
        changes = (f"data.{key} was {as_toml(before.get(key))} and is {as_toml(now[key])}" for key in others)
        return f" ({'; '.join(changes)})"

    def changed_settings(self, config: RunConfig) -> list[str]:
        """Describe the settings of the completed steps that a configuration changes, as far as known."""
        saved = self.checkpoint / CHECKPOINT_CONFIG
        return changed_settings(saved if saved.exists() else self.run / RUN_CONFIG, config)

    @property
    def is_saved(self) -> bool:
        """Whether the state is a checkpoint on the disk."""
        return True

    def nothing_left(self, num_steps: int) -> str | None:
        """Return the message that all `num_steps` iterations are done; None if some are left."""
        done = self.manifest.step
        if done < num_steps:
            return None
        if done == num_steps:
            return f"all steps are done, {num_steps:,} of them: there is nothing left to train"
        return f"{done:,} steps are done and {num_steps:,} wanted: there is nothing left to train"

    def __str__(self) -> str:
        """Describe the state to continue from, as the end of a sentence."""
        return f"after step {self.manifest.step} of {self.run}"

    def values(
        self,
        parameters: ModelParameters,  # noqa: ARG002 - a subclass needs them
        layout: OptimizerShards,  # noqa: ARG002
    ) -> AbstractContextManager[StateValues]:
        """Verify the checkpoint, and return its values for the context. Collective.

        Args:
            parameters: The model's parameters.
            layout: Owner of each element; a checkpoint can be read by any.

        Raises:
            HydraulisError: A shard of the checkpoint is damaged (code `checkpoint_damaged`); on every rank.
        """
        # Each shard is verified by one rank, whichever ranks read it.
        shards = range(dist.get_rank(), self.manifest.world_size, dist.get_world_size())
        on_every_rank(lambda: verify_shards(self.checkpoint, self.manifest, shards))
        return CheckpointReader(self.checkpoint, self.manifest)


def find_resumed(resume: str, directory: str) -> ResumedRun | None:
    """Find the run to resume and its newest complete checkpoint. Collective.

    Args:
        resume: Folder of a run, or `latest`, or empty to start a new run.
        directory: Value of `output.directory`.

    Returns:
        The run; None if `resume` is empty or `latest` finds no checkpoint.

    Raises:
        InvalidInputError: The folder has no complete checkpoint (code `checkpoint_missing`), the checkpoint
            has another format (`run_unreadable`), or some rank does not see it (`folder_not_shared`).
        HydraulisError: The manifest is damaged (code `checkpoint_damaged`).
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


def restore_moments(reader: StateValues, shard: OptimizerShard) -> None:
    """Read the optimizer's moments into this rank's optimizer shard.

    The master parameters are read when the shard is built.

    Args:
        reader: Values of the resumed state.
        shard: This rank's optimizer shard; its trained parameters have moments in the checkpoint (see
            `ResumedRun.check`).

    Raises:
        HydraulisError: A shard of the checkpoint is damaged (code `checkpoint_damaged`).
    """
    for name, moment in shard.optimizer.moments.items():
        for piece in shard.trained_slices:
            parameter = shard.parameters.names[piece.parameter]
            moment[elements_of(piece)] = reader.read(parameter, piece.start, piece.end, name)


def newest_of(resume: str, directory: str) -> Path | None:
    """Find the newest complete checkpoint of the run to resume, on one rank.

    Args:
        resume: Folder of a run, or `latest`.
        directory: Value of `output.directory`.

    Returns:
        The checkpoint's folder; None if `latest` finds none.

    Raises:
        InvalidInputError: The folder has no complete checkpoint (code `checkpoint_missing`).
    """
    if resume != LATEST:
        return _newest_in(resume)
    for run in reversed(numbered_runs(Path(directory))):
        newest = CheckpointFolder.of_run(run).newest()
        if newest is not None:
            return newest
    return None


def _newest_in(resume: str) -> Path:
    """Return the newest complete checkpoint of a folder; the refusal suggests `latest` for similar words."""
    try:
        return newest_checkpoint(Path(resume))
    except InvalidInputError as error:
        message = f"{error}{did_you_mean(resume, [LATEST])}"
        raise InvalidInputError(message, code=error.code) from None


def numbered_runs(first: Path) -> list[Path]:
    """List the folders `NAME`, `NAME-2`, `NAME-3` and so on of one `output.directory`, oldest first."""
    numbered = re.compile(re.escape(first.name) + r"-(\d+)")
    matches = [(numbered.fullmatch(path.name), path) for path in first.parent.glob("*")]
    later = sorted((int(match[1]), path) for match, path in matches if match)
    return [first, *(path for _, path in later)]


_DATA_NAMES = {
    "fingerprint": "the data's fingerprint",
    "seed": "train.seed",
    "tokens_per_batch": "data.tokens_per_batch",
    "sequences_per_batch": "data.sequences_per_batch",
    "epoch_end": "data.epoch_end",
    "max_tokens": "data.max_tokens",
    "next_batch": "the next batch's digest, of sequences in numpy's order,",
}
