"""Where a run writes, and how much room its checkpoints need there."""

import dataclasses
import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from helpers import refused
from hydraulis.config.output import CheckpointConfig, OutputConfig
from hydraulis.config.run import RunConfig
from hydraulis.errors import HydraulisError
from hydraulis.runtime.checkpoint.folder import CheckpointFolder
from hydraulis.runtime.checkpoint.manifest import MANIFEST, Manifest
from hydraulis.runtime.checkpoint.resume import ResumedRun
from hydraulis.runtime.records.output_folder import checked_output
from hydraulis.runtime.records.run_directory import CHECKPOINTS
from hydraulis.runtime.state.parameters import ModelParameters
from hydraulis.text.values import MIB
from runtime.tiny import run_config


def config_of(directory: Path, steps: int | None = 100, **checkpoint: Any) -> RunConfig:
    config = run_config(1, ["1x<1>"])
    # Only evaluated checkpoints are kept as the best.
    evaluated = checkpoint.get("every_steps")
    return dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, held_out=0.1),
        train=dataclasses.replace(
            config.train, steps=steps, epochs=None if steps else 1, evaluate_every=evaluated
        ),
        checkpoint=CheckpointConfig(**checkpoint),
        output=OutputConfig(directory=str(directory)),
    )


def resumed_at(step: int, run: Path, kept: int) -> ResumedRun:
    for number in range(kept):
        (CheckpointFolder.of_run(run).begin(step - number) / MANIFEST).touch()
    return ResumedRun(run, run, cast("Manifest", SimpleNamespace(step=step)))


def one_checkpoint(config: RunConfig) -> int:
    return 3 * 4 * ModelParameters.from_config(config.model).elements.trained


@pytest.mark.parametrize(
    ("steps", "checkpoint", "count"),
    [
        (100, {}, 1),  # that of the end alone
        (100, {"every_steps": 10}, 3),
        (100, {"every_steps": 10, "keep": 5}, 6),
        (100, {"every_steps": 10, "keep": 5, "keep_best": True}, 7),
        (100, {"every_steps": 100, "keep": 5}, 1),
        (101, {"every_steps": 100, "keep": 5}, 2),
        (100, {"every_steps": 10, "keep": 0}, 10),
        (None, {"every_steps": 10, "keep": 4}, 5),
        (None, {"every_steps": 10, "keep": 0}, 1),  # nobody knows yet how many
    ],
)
def test_room_is_needed_for_all_checkpoints_and_one_more(
    tmp_path: Path, steps: int | None, checkpoint: dict[str, int], count: int
) -> None:
    config = config_of(tmp_path / "run", steps, **checkpoint)
    found = checked_output(config, None)
    assert found.needed == count * one_checkpoint(config)
    assert found.is_counted == (steps is not None or checkpoint["keep"] > 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("kept", "count"), [(1, 2), (2, 1), (5, 1)])
def test_checkpoints_of_a_resumed_run_need_no_room_again(tmp_path: Path, kept: int, count: int) -> None:
    config = config_of(tmp_path, every_steps=10)
    found = checked_output(config, resumed_at(50, tmp_path, kept))
    assert found.path == tmp_path
    assert found.needed == count * one_checkpoint(config)


def test_too_little_room_is_refused_with_the_needed_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path / "run", every_steps=10)
    needed = 3 * one_checkpoint(config)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=needed))
    assert checked_output(config, None).free == needed
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=needed - 1))
    # A byte too little is not as much.
    whole = math.ceil(needed / MIB)
    with refused("file_unwritable", f"{whole - 1} MiB", "3 checkpoints", f" {whole}:", "checkpoint.keep"):
        checked_output(config, None)


@pytest.mark.parametrize(
    ("keep", "steps", "fewer"),
    [
        (0, 100, "set checkpoint.keep to 1 or more, "),
        (1, 100, ""),
        (2, 100, "lower checkpoint.keep, "),
        # Two are there at once whatever is kept.
        (0, 20, ""),
        (2, 20, ""),
    ],
)
def test_fewer_checkpoints_are_advised_where_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: int, steps: int, fewer: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    with pytest.raises(HydraulisError) as refusal:
        checked_output(config_of(tmp_path / "run", steps, every_steps=10, keep=keep), None)
    _, _, remedy = str(refusal.value).partition(": ")
    assert remedy == f"make room, {fewer}or set output.directory to another disk"


def test_a_folder_that_cannot_be_written_is_refused() -> None:
    with refused("file_unwritable", "'/proc'"):
        checked_output(config_of(Path("/proc/run")), None)
    with refused("file_unwritable", "/proc"):
        checked_output(
            config_of(Path("run")), ResumedRun(Path("/proc"), Path("/proc"), cast("Manifest", None))
        )


def test_a_resumed_run_whose_checkpoints_cannot_be_written_is_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path, every_steps=10)
    # A run without checkpoints is continued from copies in memory.
    assert checked_output(config, resumed_at(50, tmp_path, 0)).path == tmp_path
    (tmp_path / CHECKPOINTS).symlink_to("/proc")
    with refused("file_unwritable", tmp_path / CHECKPOINTS, "permissions"):
        checked_output(config, resumed_at(50, tmp_path, 0))


def test_an_existing_folder_is_reported(tmp_path: Path) -> None:
    assert checked_output(config_of(tmp_path), None).is_taken
    assert not checked_output(config_of(tmp_path / "run"), None).is_taken
