"""A run whose ranks torchrun starts again after a loss (`--max-restarts`)."""

import os
import signal
from pathlib import Path

from cli.commands.test_train import KEEP_CODES, finish, start, wait_for
from hydraulis.runtime.checkpoint.folder import CheckpointFolder
from profiles import made_up_profile
from train.small_run import read_lines, write_config

STEPS = 20


def test_a_run_continues_in_its_folder_when_its_ranks_are_started_again(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    (tmp_path / "profile.json").write_text(made_up_profile({"<1>": 512, "<tp2>": 1024}).to_json())
    (tmp_path / "sitecustomize.py").write_text(KEEP_CODES.format(place=tmp_path))
    overrides = (
        f"planner.profile={tmp_path}/profile.json",
        "planner.strategies=2x<1>;1x<tp2>",
        f"train.steps={STEPS}",
        "checkpoint.every_steps=1",
        "checkpoint.keep=0",
    )
    options = [part for override in overrides for part in ("--set", override)]
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    process = start([str(config), *options], restarts=1, PYTHONPATH=path)
    folder = CheckpointFolder.of_run(tmp_path / "run")

    try:
        wait_for(process, lambda: folder.newest() is not None)
        os.kill(int((tmp_path / "process-0").read_text()), signal.SIGKILL)
    finally:
        code, out, err = finish(process)
    assert code == 0, err
    assert f"torchrun started the ranks again: continuing the run {tmp_path / 'run'}\n" in out
    assert [line["step"] for line in read_lines(tmp_path / "run" / "metrics.jsonl")] == list(
        range(1, STEPS + 1)
    )
    assert not (tmp_path / "run-2").exists()
