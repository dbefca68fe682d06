"""Functions that the tests of starts with copies of the state run on ranks."""

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist

from hydraulis._core import OptimizerShards
from hydraulis.data.open import make_datasets
from hydraulis.errors import HydraulisError
from hydraulis.planner.profile_document import with_schemes
from hydraulis.runtime.checkpoint.position import DataPosition
from hydraulis.runtime.checkpoint.resume import restore_moments
from hydraulis.runtime.recovery.memory_folder import CopyName
from hydraulis.runtime.recovery.survey import find_in_memory
from hydraulis.runtime.state.parameters import ModelParameters
from hydraulis.runtime.worker import Worker
from hydraulis.train.state_copies import build_keeper
from profiles import made_up_profile
from runtime.recovery.keeper_workers import GROUP, Setting, tensor_bytes
from runtime.tiny import made_up_corpus, run_config, train_config
from runtime.worker_workers import CAPS, Batch, _step
from train.events import RecordedEvents


class Started(NamedTuple):
    """One start of a run.

    Attributes:
        code: Code of the error that refused the start; empty for none.
        message: The error's message.
        step: Step that the start continues from; 0 for a new run.
        at_start: Steps of the files of each folder before the first step; None for the frozen parameters.
        after: The same after each step.
        most: Most bytes of all files so far.
    """

    code: str
    message: str
    step: int
    at_start: list[set[int | None]]
    after: list[list[set[int | None]]]
    most: int


def train_with_copies(
    run: Path, base: Path, setting: Setting, steps: Sequence[tuple[str, Batch]], copies: float
) -> Started:
    """Start a run or continue it from copies, train, and end as if killed.

    Args:
        run: The run's folder.
        base: Folder of the copies.
        setting: The worker.
        steps: Strategy and batch of each step.
        copies: Room of the pretended disk below `base`, in copies of the whole state.
    """
    events = RecordedEvents()
    kept = find_in_memory(lambda: run, str(base), events.message)
    worker = setting.worker()
    if kept is not None:
        parameters = ModelParameters.from_config(setting.config, setting.frozen)
        layout = OptimizerShards(parameters.table, worker.cluster, worker.schemes)
        with kept.values(parameters, layout) as values:
            worker = setting.worker(values)
            restore_moments(values, worker.optimizer_shard)
    completed = 0 if kept is None else kept.manifest.step
    room = int(copies * _copy_bytes(worker))
    most = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=room - _used(base)))
        try:
            keeper = build_keeper(_opened(base, kept, completed), worker, run, events)
        except HydraulisError as error:
            return Started(str(error.code), str(error), completed, _steps_below(base), [], 0)
    assert keeper is not None
    at_start = _steps_below(base)
    profile, after = with_schemes(made_up_profile(CAPS), worker.schemes), []
    for number, (strategy, batch) in enumerate(steps, completed + 1):
        _step(worker, profile, strategy, batch)
        keeper.after(number)
        assert keeper._pending is not None
        keeper._pending.call.ended.wait()
        dist.barrier()
        after.append(_steps_below(base))
        most = max(most, _used(base))
        dist.barrier()
    assert most <= room
    return Started("", "", completed, at_start, after, most)


def _opened(base: Path, kept: Any, completed: int) -> Any:
    """Return the parts of an opened run that its copies need."""
    config = run_config(9, ["1x<1>"])
    checkpoint = dataclasses.replace(config.checkpoint, memory_folder=str(base))
    config = dataclasses.replace(config, checkpoint=checkpoint, train=train_config(dtype=torch.float64))
    position = DataPosition(config, make_datasets(config.data, [[made_up_corpus(256)]]).train)
    position.group = GROUP
    return SimpleNamespace(config=config, position=position, resumed=kept, completed=completed)


def _copy_bytes(worker: Worker) -> int:
    """Return the bytes of the parameters and moments of all ranks, all trained."""
    shard = worker.optimizer_shard
    elements = shard.parameters.elements.trained
    return shard.master.itemsize * elements * (1 + len(shard.optimizer.moments))


def _used(base: Path) -> int:
    """Return the bytes of all tensors below a folder; the headers of such small files are as large."""
    return sum(tensor_bytes(path) for path in base.glob("*/*.safetensors"))


def _steps_below(base: Path) -> list[set[int | None]]:
    """Return the steps of the files in each folder, empty folders left out."""
    found = []
    for folder in base.iterdir():
        copies = (CopyName.parse(path.name) for path in folder.iterdir())
        steps = {copy.step for copy in copies if copy is not None}
        if steps:
            found.append(steps)
    return found
