"""A run whose ranks torchrun starts again after a loss (`--max-restarts`)."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

from cli.commands.test_train import KEEP_CODES, finish, start, wait_for
from hydraulis.runtime.checkpoint.folder import CheckpointFolder
from hydraulis.runtime.records.run_directory import MEMORY
from hydraulis.runtime.recovery.memory_folder import CopyName
from train.small_run import read_lines, write_quick_config

STEPS = 40


def output_of_a_restart(folder: Path, is_time: Callable[[], bool], *settings: str) -> str:
    """Train, kill rank 0 once `is_time` holds, and return the output of the whole run."""
    config = write_quick_config(folder)
    (folder / "sitecustomize.py").write_text(KEEP_CODES.format(place=folder))
    overrides = (
        "planner.strategies=2x<1>;1x<tp2>",
        f"train.steps={STEPS}",
        *settings,
    )
    options = [part for override in overrides for part in ("--set", override)]
    path = os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", "")))
    process = start([str(config), *options], restarts=1, PYTHONPATH=path)
    try:
        wait_for(process, is_time)
        os.kill(int((folder / "process-0").read_text()), signal.SIGKILL)
    finally:
        code, out, err = finish(process)
    assert code == 0, err
    assert [line["step"] for line in read_lines(folder / "run" / "metrics.jsonl")] == list(
        range(1, STEPS + 1)
    )
    assert not (folder / "run-2").exists()
    return out


def test_a_run_continues_in_its_folder_when_its_ranks_are_started_again(tmp_path: Path) -> None:
    folder = CheckpointFolder.of_run(tmp_path / "run")
    settings = ("checkpoint.every_steps=1", "checkpoint.keep=0")
    out = output_of_a_restart(tmp_path, lambda: folder.newest() is not None, *settings)
    again = "the ranks were started again: continuing"
    assert f"{again} {tmp_path / 'run'} from its newest checkpoint\n" in out


def test_a_run_without_a_checkpoint_continues_from_memory(tmp_path: Path) -> None:
    memory, name = tmp_path / "memory", tmp_path / "run" / MEMORY
    memory.mkdir()

    def has_second_copy() -> bool:
        # The first one is whole then.
        found = (CopyName.parse(path.name) for path in memory.glob("*/*"))
        return any(copy is not None and (copy.step or 0) > 1 for copy in found)

    out = output_of_a_restart(tmp_path, has_second_copy, f"checkpoint.memory_folder={memory}")
    assert f" of {tmp_path / 'run'}, from copies in {memory}\n" in out
    assert list(memory.iterdir()) == []
    assert not name.exists()
