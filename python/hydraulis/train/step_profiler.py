"""Records the operations of chosen steps by torch's profiler, in a file for each step and rank."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import torch

from hydraulis.files import replace_file
from hydraulis.runtime.records.run_directory import PROFILER, RunDirectory, writing

_Step = TypeVar("_Step")


def profiled_steps(
    steps: Iterator[_Step], first: int, chosen: Sequence[int], directory: RunDirectory, rank: int
) -> Iterator[_Step]:
    """Yield all steps, and record the operations of the chosen ones.

    A chosen step takes longer, by the profiler's own time. The files are traces for Perfetto, named
    `step-00000010-rank-00003.json` in the folder `profiler`.

    Args:
        steps: Steps of the run; taking one of them runs it.
        first: Number of the first of them, counted from 1.
        chosen: Numbers of the steps to record.
        directory: Folder of the run.
        rank: Number of this rank.

    Raises:
        HydraulisError: A file cannot be written (code `file_unwritable`).
    """
    if not torch.cuda.is_available():
        # Kineto writes its search for a GPU to stderr as an error; it reads this at the first recorded step.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    number = first
    while True:
        try:
            step = _recorded(steps, number, directory, rank) if number in chosen else next(steps)
        except StopIteration:
            return
        yield step
        number += 1


def _recorded(steps: Iterator[_Step], number: int, directory: RunDirectory, rank: int) -> _Step:
    # By default the activities are those of the host and of every kind of device that is there.
    with torch.profiler.profile() as profiler:
        step = next(steps)
    folder = directory.folder(PROFILER)
    _write(profiler, folder.path / f"step-{number:08}-rank-{rank:05}.json")
    return step


def _write(profiler: torch.profiler.profile, path: Path) -> None:
    with writing(path), replace_file(path) as unfinished:
        profiler.export_chrome_trace(str(unfinished))
