"""The position of a run within a group of batches: saved by checkpoints, and continued by resumed runs."""

import json
import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from helpers import lacks
from hydraulis import Cluster, Plan
from hydraulis.config.run import load
from hydraulis.data.sources.stdlib import StandardLibrary
from hydraulis.preflight.run import preflight
from hydraulis.runtime.checkpoint.reader import read_manifest
from profiles import made_up_profile
from ranks import run_ranks
from runtime.tiny import CAPS
from train.small_run import read_lines, write_config
from train.train_workers import load_made_up, run_commands

# Groups of four steps and two; with this seed, sequences move between the first and the fourth step.
STEPS, SEED = 6, 6
# What the refusal of fewer epochs names.
_NAMED = ("steps 1 to 8", "train.epochs was 2 and is 1")


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of a run with lookahead and a checkpoint after every step, which has ended."""
    folder = tmp_path_factory.mktemp("lookahead")
    (folder / "PROFILE").write_text(made_up_profile(CAPS).to_json())
    overrides = (
        f'planner.profile="{folder}/PROFILE"',
        "planner.lookahead=4",
        "planner.max_delay=3",
        f"train.steps={STEPS}",
        f"train.seed={SEED}",
        "data.max_tokens=64",
        "data.tokens_per_batch=120",
        "checkpoint.every_steps=1",
        "checkpoint.keep=0",
    )
    arguments = [str(write_config(folder)), *_options(*overrides)]
    for (ended,) in run_ranks(2, run_commands, [arguments]):
        assert ended.code == 0, ended.err
    return arguments


def _options(*overrides: str) -> list[str]:
    return [part for override in overrides for part in ("--set", override)]


def _run(arguments: list[str]) -> Path:
    return Path(arguments[0]).parent / "run"


def _stopped(arguments: list[str], step: int, folder: Path) -> Path:
    """Copy the run as it was after a step."""
    stopped = folder / "stopped"
    shutil.copytree(_run(arguments), stopped)
    for later in range(step + 1, STEPS + 1):
        shutil.rmtree(stopped / "checkpoints" / f"step-{later:08}")
    return stopped


def _lengths(run: Path) -> list[list[int]]:
    return [Plan.from_json(json.dumps(line)).lengths.tolist() for line in read_lines(run / "plans.jsonl")]


def _losses(run: Path) -> list[Any]:
    return [line["loss"] for line in read_lines(run / "metrics.jsonl")]


def test_checkpoints_within_a_group_have_its_moves(arguments: list[str]) -> None:
    run = _run(arguments)
    groups = [read_manifest(run / "checkpoints" / f"step-{step:08}").data.group for step in range(1, 7)]
    assert [group is None for group in groups] == [False, False, False, True, False, True]
    assert groups[0] is not None
    assert groups[0] == groups[1] == groups[2]
    moved = [line["moved"] for line in read_lines(run / "metrics.jsonl")]
    assert [groups[0].num_moved(step) for step in range(1, 5)] == moved[:4]
    assert moved[0] > 0 < moved[3]


@pytest.mark.parametrize("step", [1, 3, 4])
def test_a_resumed_run_is_equal_to_the_bit(arguments: list[str], step: int, tmp_path: Path) -> None:
    stopped = _stopped(arguments, step, tmp_path)
    for (ended,) in run_ranks(2, run_commands, [[*arguments, "--resume", str(stopped)]]):
        assert ended.code == 0, ended.err
    assert (stopped / "plans.jsonl").read_bytes() == (_run(arguments) / "plans.jsonl").read_bytes()
    assert _losses(stopped) == _losses(_run(arguments))


def test_another_number_of_ranks_and_no_lookahead_train_each_sequence_once(
    arguments: list[str], tmp_path: Path
) -> None:
    stopped = _stopped(arguments, 2, tmp_path)
    more = _options("planner.lookahead=1", 'planner.strategies=["2x<tp2>"]')
    for (ended,) in run_ranks(4, run_commands, [[*arguments, *more, "--resume", str(stopped)]]):
        assert ended.code == 0, ended.err
    whole, resumed = _lengths(_run(arguments)), _lengths(stopped)
    assert resumed[:4] == whole[:4]
    assert sorted(chain(*resumed)) == sorted(chain(*whole))
    assert _losses(stopped)[:4] == pytest.approx(_losses(_run(arguments))[:4], rel=1e-5)
    assert read_lines(stopped / "metrics.jsonl")[4]["moved"] == 0


def test_fewer_epochs_within_a_group_are_refused_by_training_and_check(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An epoch has six steps; with this seed, a sequence of the second epoch moves from the sixth step.
    ended_within = _options(
        "train.steps=8",
        "train.epochs=2",
        "train.seed=27",
        "planner.lookahead=8",
        "planner.max_delay=7",
        f'output.directory="{tmp_path}/run"',
    )
    for (ended,) in run_ranks(2, run_commands, [[*arguments, *ended_within]]):
        assert ended.code == 0, ended.err
    for later in range(2, 9):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / f"step-{later:08}")
    fewer = [*arguments, *ended_within, *_options("train.epochs=1")]
    (refused,), _ = run_ranks(2, run_commands, [[*fewer, "--resume", str(tmp_path / "run")]])
    assert (refused.code, lacks(refused.err, "[checkpoint_mismatch]", *_NAMED)) == (2, [])
    monkeypatch.setattr(StandardLibrary, "load", load_made_up)
    config = load(Path(fewer[0]), [*fewer[2::2], f'checkpoint.resume="{tmp_path}/run"'])
    (found,) = (one for one in preflight(config, Cluster(2, 2)) if one.name == "resume")
    assert (found.status, found.code, lacks(found.text, *_NAMED)) == ("refused", "checkpoint_mismatch", [])
