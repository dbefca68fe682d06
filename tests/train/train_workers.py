"""Functions that tests of training run on ranks: the whole command, without joining the group and reading the
corpus.
"""

import contextlib
import dataclasses
import io
import os
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from hydraulis.cli.commands import train as command
from hydraulis.cli.ranks import report as rank_report
from hydraulis.data.corpus import Corpus
from hydraulis.data.sources.stdlib import StandardLibrary
from hydraulis.errors import HydraulisError
from hydraulis.runtime import step_checks
from hydraulis.runtime.checkpoint import saver
from hydraulis.runtime.checkpoint.manifest import ShardRecord
from hydraulis.runtime.checkpoint.shard import write_shard
from hydraulis.runtime.checkpoint.shared import check_shared
from hydraulis.runtime.iteration import Iteration
from hydraulis.runtime.memory import iteration_memory
from hydraulis.runtime.pipeline.timers import CpuTimers, StepTimes
from hydraulis.runtime.planning import rank_devices
from hydraulis.runtime.planning.run_planner import RunPlanner
from hydraulis.runtime.ranks import distributed
from hydraulis.runtime.ranks.device import CPU
from hydraulis.runtime.records.recorder import Recorder
from hydraulis.runtime.records.run_directory import RunDirectory
from hydraulis.train import run_records, slow_links, trainer
from hydraulis.train.step_profiler import profiled_steps
from runtime.collective_counts import counted_collectives
from runtime.tiny import made_up_corpus


class Ended(NamedTuple):
    """The exit code and output of one rank's command."""

    code: int
    out: str
    err: str


def run_commands(commands: Sequence[Sequence[str]], ranks_per_node: int | None = None) -> list[Ended]:
    """Run the command with each list of arguments in turn; all ranks are on one node by default."""
    size = dist.get_world_size()
    os.environ |= {"RANK": str(dist.get_rank()), "WORLD_SIZE": str(size)}
    os.environ["LOCAL_WORLD_SIZE"] = str(ranks_per_node or size)
    # The process group exists already, and no store is contacted.
    os.environ |= {"MASTER_ADDR": "nowhere", "MASTER_PORT": "0"}
    setattr(distributed, "joined", join_existing_group)  # noqa: B010
    # Without torchrun a waiting rank would not be terminated.
    setattr(rank_report, "PATIENCE_S", 0.0)  # noqa: B010
    setattr(StandardLibrary, "load", load_made_up)  # noqa: B010
    return [_run(arguments) for arguments in commands]


def run_where_files_fail(folder: Path, arguments: Sequence[str]) -> list[Ended]:
    """Run the command with a separate folder for each rank, and with a disk that refuses appended lines."""
    apart = folder / f"node-{dist.get_rank()}"
    apart.mkdir()
    os.chdir(apart)
    setattr(run_records, "check_shared", partial(check_shared, patience_s=0.2))  # noqa: B010
    apart_ended = run_commands([[*arguments, "--set", "output.directory=run"]])
    return [*apart_ended, _run_on_a_full_disk(arguments)]


def _run_on_a_full_disk(arguments: Sequence[str]) -> Ended:

    def refuse(*_: object) -> None:
        message = "no space left on device"
        raise HydraulisError(message, code="file_unwritable")

    setattr(RunDirectory, "append", refuse)  # noqa: B010
    (ended,) = run_commands([arguments])
    return ended


def run_with_slow_rank(commands: Sequence[Sequence[str]]) -> list[Ended]:
    """Run the commands with made-up times, in which each computation takes rank 1 four times as long."""
    read = CpuTimers.read

    def made_up(timers: CpuTimers) -> StepTimes:
        times = read(timers)
        each_ms = 400.0 if dist.get_rank() == 1 else 100.0
        return StepTimes([each_ms] * len(times.computed_ms), times.transferred_ms)

    setattr(CpuTimers, "read", made_up)  # noqa: B010
    setattr(iteration_memory, "_saved_activations", lambda _, __: None)  # noqa: B010
    return run_commands(commands)


def run_and_note_factors(commands: Sequence[Sequence[str]]) -> tuple[list[Ended], list[list[str]]]:
    """Run the commands; return also the schemes whose factors each resumed run takes, on rank 0."""
    resume, noted = RunPlanner.resume, []

    def noting(planner: RunPlanner, used: Any, factors: Any, rates: Any) -> None:
        noted.append(sorted(factors))
        resume(planner, used, factors, rates)

    setattr(RunPlanner, "resume", noting)  # noqa: B010
    return run_commands(commands), noted


def run_on_two_devices(commands: Sequence[Sequence[str]]) -> list[Ended]:
    """Run the commands on ranks of which the second names its device `slow CPU`."""
    name = ("fast CPU", "slow CPU")[dist.get_rank()]
    setattr(rank_devices, "device_name", lambda _: name)  # noqa: B010
    return run_commands(commands)


def run_with_slow_link(commands: Sequence[Sequence[str]], slow: range) -> list[Ended]:
    """Run the commands on nodes of one rank, with made-up times of transfers between them.

    In some steps, counted over all commands, node 1 needs three times as long.
    """
    rank, read, checked = dist.get_rank(), CpuTimers.read, getattr(slow_links, "measure_pairs")  # noqa: B009
    steps = iter(range(1, 1_000))

    def made_up(timers: CpuTimers) -> StepTimes:
        times = read(timers)
        # Evaluations gather parameters too, and are not timed.
        if times.crossing_ms and times.computed_ms:
            crossing_ms = 300.0 if next(steps) in slow else 100.0
            return dataclasses.replace(times, crossing_ms=crossing_ms)
        return times

    def check(*arguments: Any) -> dict[tuple[int, int], float]:
        found = checked(*arguments)
        return {pair: 9.0 if 1 in pair else 3.0 for pair in found}

    setattr(CpuTimers, "read", made_up)  # noqa: B010
    setattr(slow_links, "measure_pairs", check)  # noqa: B010
    setattr(socket, "gethostname", lambda: f"node-{rank}")  # noqa: B010
    return run_commands(commands, ranks_per_node=1)


def collectives_of_steps(arguments: Sequence[str]) -> list[Counter[str]]:
    """Run the command, and count the collectives over all ranks from each step's end to the next one's."""
    iterations: Any = getattr(trainer, "iterations")  # noqa: B009
    seen: list[Counter[str]] = []

    def counted(*of_run: Any) -> Iterator[Iteration]:
        with counted_collectives() as counts:
            for iteration in iterations(*of_run):
                seen.append(counts.copy())
                counts.clear()
                yield iteration

    setattr(trainer, "iterations", counted)  # noqa: B010
    (ended,) = run_commands([arguments])
    assert ended.code == 0, ended
    return seen[1:]


def run_while_writing(arguments: Sequence[str]) -> list[Ended]:
    """Fail after the first step, whose checkpoint rank 1 is still writing.

    First the loss diverges on all ranks, once with rank 1 completing its shard and once with an error. Then
    rank 0 fails alone, while rank 1 would write for ever.
    """
    lost = threading.Event()
    check_loss = step_checks.check_loss

    def checked(loss: float, *rest: Any) -> None:
        try:
            check_loss(loss, *rest)
        except HydraulisError:
            lost.set()
            raise

    def held_up(*shard: Any) -> ShardRecord:
        if dist.get_rank() == 1:
            lost.wait()
        return write_shard(*shard)

    def full(*_: object) -> ShardRecord:
        if dist.get_rank() == 1:
            lost.wait()
        message = "no space left"
        raise OSError(message)

    setattr(step_checks, "check_loss", checked)  # noqa: B010
    ended = []
    for writer in (held_up, full):
        lost.clear()
        setattr(saver, "write_shard", writer)  # noqa: B010
        ended += run_commands([[*arguments, "--set", "optimizer.learning_rate=1e30"]])
    lost.clear()
    setattr(saver, "write_shard", held_up)  # noqa: B010
    ended.append(_run_where_rank_zero_fails(arguments))
    lost.set()
    return ended


def run_where_a_step_is_not_finite(commands: Sequence[Sequence[str]], failing: int) -> list[Ended]:
    """Run the commands; the gradient of step `failing` is not finite."""
    check_norm = step_checks.check_norm

    def checked(norm: float, step: int, *rest: Any) -> None:
        check_norm(float("nan") if step == failing else norm, step, *rest)

    setattr(step_checks, "check_norm", checked)  # noqa: B010
    return run_commands(commands)


def _run_where_rank_zero_fails(arguments: Sequence[str]) -> Ended:
    add = Recorder.add

    def fail(recorder: Recorder, iteration: Iteration) -> None:
        if iteration.metrics.step == 2:
            raise ZeroDivisionError
        add(recorder, iteration)

    setattr(Recorder, "add", fail)  # noqa: B010
    try:
        (ended,) = run_commands([arguments])
    except ZeroDivisionError as error:
        return Ended(1, "", repr(error))
    return ended


def _run(arguments: Sequence[str]) -> Ended:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = command.main(arguments)
    return Ended(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def join_existing_group(
    _timeout: timedelta, device: torch.device = CPU, **_settings: object
) -> Iterator[int]:
    """Replace `joined`: the process group exists already."""
    assert device.type == "cpu"
    yield dist.get_rank()


def load_made_up(_progress: object = None) -> Corpus:
    """Stand in for the standard library, which takes seconds to read."""
    return made_up_corpus(256, longest=400)


def errors_of_a_record(folder: Path) -> str:
    """Record a step by torch's profiler, and return all that its library writes to standard error."""
    place = folder / "errors"
    with place.open("w") as file:
        os.dup2(file.fileno(), 2)
    list(profiled_steps(iter([torch.ones(3).cos()]), 1, (1,), RunDirectory(folder), rank=0))
    return place.read_text()
