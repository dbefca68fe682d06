"""Checks of folders and trackers."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers import refused, unsearched
from hydraulis.data.sources.prepare import prepare_sources
from hydraulis.preflight.folders import FolderChecks
from hydraulis.runtime.checkpoint.folder import CheckpointFolder
from hydraulis.runtime.records.output_folder import checked_output
from hydraulis.runtime.records.run_directory import MEMORY, PROFILE
from preflight.checked_run import findings, read


def test_an_unreadable_parent_folder_is_refused(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root can read all folders.
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    config = read(made)
    monkeypatch.setattr(Path, "lstat", refuse)
    monkeypatch.setattr(Path, "exists", refuse)
    found = FolderChecks(config)
    with refused("file_unwritable", "runs/one", "Errno 13"):
        found.output(None)


def test_a_run_that_may_not_be_searched_is_refused(made: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    CheckpointFolder.of_run(run).begin(5)
    checks = FolderChecks(read(made, f"checkpoint.resume={run}"))
    with unsearched(run):
        with refused("file_unreadable", run, "Permission denied"):
            checks.resume(None)
        assert checks.is_resumed()


def test_copies_in_memory_may_continue_a_run_without_a_checkpoint(made: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / PROFILE).touch()
    overrides = (f"checkpoint.resume={run}", f"checkpoint.memory_folder={tmp_path}")
    with refused("checkpoint_missing", run):
        FolderChecks(read(made, *overrides)).resume(None)
    (run / MEMORY).write_text(f"{'a' * 32}\n")
    status, text = FolderChecks(read(made, *overrides)).resume(None)
    assert status == "later"
    assert f"the copies in {tmp_path} on the nodes decide" in text
    with refused("checkpoint_missing", run):
        FolderChecks(read(made, overrides[0])).resume(None)


def test_room_for_all_checkpoints_is_counted_once_the_data_are_indexed(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeps_all = ("checkpoint.keep=0", "checkpoint.every_steps=1")
    config = read(made, f"data.index_directory={tmp_path}/index", *keeps_all)
    found = findings(config)["output"]
    assert found.status == "later"
    assert "checkpoint.keep = 0" in found.text
    prepare_sources(config.data)
    assert findings(config)["output"].status == "ok"
    ended = replace(config, checkpoint=replace(config.checkpoint, every_steps=None))
    needed = checked_output(ended, None).needed
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3 * needed))
    found = findings(config)["output"]
    assert (found.status, found.code) == ("refused", "file_unwritable")
    steps = int(findings(config)["length"].text.split()[0])
    assert f"{steps} checkpoints at once take" in found.text
    assert findings(ended)["output"].status == "ok"


def test_a_service_that_is_not_installed_is_refused(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = read(made, "output.tensorboard=true", "output.wandb_project=p")
    assert findings(config)["services"].text == "TensorBoard, Weights & Biases"
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert findings(config)["services"].code == "extra_missing"
