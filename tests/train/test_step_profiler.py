"""The operations of chosen steps, recorded by torch's profiler."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from helpers import refused
from hydraulis.errors import HydraulisError
from hydraulis.runtime.records.run_directory import RunDirectory
from hydraulis.train.step_profiler import profiled_steps
from ranks import run_ranks
from train.train_workers import errors_of_a_record


def steps(first: int, last: int) -> Iterator[int]:
    for number in range(first, last + 1):
        # Its size is in the trace.
        torch.ones(number, 3).cos()
        yield number


def operations(path: Path) -> list[str]:
    return [event["name"] for event in json.loads(path.read_text())["traceEvents"]]


def test_only_the_chosen_steps_are_recorded(tmp_path: Path) -> None:
    taken = list(profiled_steps(steps(3, 6), 3, (1, 4, 6, 9), RunDirectory(tmp_path), rank=2))
    assert taken == [3, 4, 5, 6]
    files = sorted(path.name for path in (tmp_path / "profiler").iterdir())
    assert files == ["step-00000004-rank-00002.json", "step-00000006-rank-00002.json"]
    for name in files:
        assert operations(tmp_path / "profiler" / name).count("aten::cos") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="the profiler's library finds a GPU")
def test_the_search_for_a_gpu_is_silent(tmp_path: Path) -> None:
    # The library reads its level of messages once in a process, so this needs one without earlier records.
    said = run_ranks(1, errors_of_a_record, tmp_path)
    assert said == [""]


def test_an_error_of_a_step_is_raised_and_leaves_no_file(tmp_path: Path) -> None:
    def failing() -> Iterator[int]:
        yield 1
        message = "planted"
        raise HydraulisError(message, code="loss_not_finite")

    with refused("loss_not_finite", "planted"):
        list(profiled_steps(failing(), 1, (2,), RunDirectory(tmp_path), rank=0))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "profiler").write_text("")
    with refused("file_unwritable", "profiler"):
        list(profiled_steps(steps(1, 1), 1, (1,), RunDirectory(tmp_path), rank=0))
