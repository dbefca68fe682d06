"""Measures the time from the kill of a rank to the end of the next step, and its parts.

    python benches/recovery.py --ranks 4 8 --repeats 3

`hydraulis train --ranks N --max-restarts K` trains a small model on the CPU, and one rank is killed at a
time. Every rank writes down the times at which the parts of a recovery end; a part ends when the last rank
has ended it. With `checkpoint.memory_folder` the run continues from the copy of the last step; without it,
from a checkpoint of every 20 steps. Linux only.
"""

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from hydraulis.cli.ranks import local_ranks
from hydraulis.cli.ranks.forked_rank import be_a_rank
from hydraulis.cli.start import command

CONFIG = """
[model]
vocab_size = 1024
hidden_size = 256
intermediate_size = 704
num_hidden_layers = 4
num_attention_heads = 8
num_key_value_heads = 4

[data]
max_tokens = 256
tokens_per_batch = 2048
index_directory = "{folder}/index"

[[data.sources]]
files = ["{folder}/tokens.npy"]
format = "tokens"

[train]
steps = 100000
seed = 1

[optimizer]
learning_rate = 1e-3

[planner]
memory_mib = 512
strategies = ["{ranks}x<1>"]
profile_seconds = 2.0

[checkpoint]
every_steps = {every}

[output]
directory = "{folder}/run"
"""
# Steps between two checkpoints.
EVERY = 20
# The mark that ends each part, in order. A line of the launcher ends the second one.
PROCESS, NOTICED, ENDED = "process", "noticed", "ended"
PARTS = {
    "all survivors notice": NOTICED,
    "they agree and end": ENDED,
    "new processes": PROCESS,
    "groups": "joined",
    "data, copies found": "opened",
    "model and state": "built",
    "plan": "planned",
    "first step": "stepped",
}
AGAIN = "starting the ranks again"
STEP = re.compile(r"step (\d+)/")
LAUNCH = "--launch"


class Line(NamedTuple):
    """A line of output, with the time of its arrival."""

    time: float
    text: str


class Mark(NamedTuple):
    """The time at which a rank reached a place."""

    name: str
    rank: int
    pid: int
    time: float


class Loss(NamedTuple):
    """One kill.

    Attributes:
        parts: Seconds of each part, in the order of `PARTS`.
        repeated: Number of completed steps that were trained again.
    """

    parts: list[float]
    repeated: int


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    names = " | ".join(PARTS)
    say(f"| ranks | state from | {names} | kill to next step, s | steps repeated |")
    say("|---|---|" + "---|" * (len(PARTS) + 2))
    for ranks in arguments.ranks:
        for source in ("memory", "checkpoint"):
            losses = measure(ranks, arguments.repeats, from_memory=source == "memory")
            columns = zip(*(one.parts for one in losses), strict=True)
            medians = [statistics.median(column) for column in columns]
            total = statistics.median(sum(one.parts) for one in losses)
            shown = " | ".join(f"{seconds:.2f}" for seconds in medians)
            repeated = ", ".join(str(one.repeated) for one in losses)
            say(f"| {ranks} | {source} | {shown} | {total:.2f} | {repeated} |")


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def launch(marks: Path, words: Sequence[str]) -> None:
    """Run `hydraulis WORDS` with ranks that write down marks."""
    setattr(local_ranks, "be_a_rank", partial(be_a_marked_rank, marks))  # noqa: B010
    sys.argv = ["hydraulis", *words]
    command()


def be_a_marked_rank(marks: Path, words: Sequence[str], environment: Mapping[str, str], *rest: Any) -> None:
    """Run a rank that writes down marks, in a process that has loaded torch."""
    from hydraulis.runtime import loop
    from hydraulis.runtime.batch import Batch
    from hydraulis.runtime.ranks import distributed
    from hydraulis.runtime.ranks.liveness.heartbeat import Heartbeat
    from hydraulis.train.opened_run import OpenedRun
    from hydraulis.train.trainer import Trainer

    rank = int(environment["RANK"])

    def mark(name: str) -> None:
        with marks.open("a") as file:
            file.write(json.dumps(Mark(name, rank, os.getpid(), time.monotonic())) + "\n")

    def marked(owner: Any, function: str, name: str, *, is_before: bool = False) -> None:
        call = getattr(owner, function)

        def wrapped(*arguments: Any, **named: Any) -> Any:
            if is_before:
                mark(name)
            result = call(*arguments, **named)
            if not is_before:
                mark(name)
            return result

        is_bound = isinstance(owner, type) and hasattr(call, "__self__")
        setattr(owner, function, staticmethod(wrapped) if is_bound else wrapped)

    mark(PROCESS)
    marked(Heartbeat, "_take_part", NOTICED, is_before=True)
    marked(distributed, "join", "joined")
    marked(OpenedRun, "open", "opened")
    marked(Trainer, "build", "built")
    marked(Batch, "plan", "planned")
    marked(loop, "train_step", "stepped")
    be_a_rank(words, environment, *rest)


def measure(ranks: int, repeats: int, *, from_memory: bool) -> list[Loss]:
    """Train, and kill one rank after another.

    Args:
        ranks: Number of ranks.
        repeats: Number of kills.
        from_memory: Whether to keep copies of the state in memory.
    """
    with tempfile.TemporaryDirectory() as folder:
        config, marks = Path(folder) / "run.toml", Path(folder) / "marks"
        config.write_text(CONFIG.format(ranks=ranks, folder=folder, every=EVERY))
        np.save(Path(folder) / "tokens.npy", np.random.default_rng(1).integers(0, 1024, (20_000, 256), "u2"))
        words = ["train", str(config), "--ranks", str(ranks), "--max-restarts", str(repeats)]
        memory = ["--set", "checkpoint.memory_folder=/dev/shm"] if from_memory else []
        process = subprocess.Popen(
            [sys.executable, __file__, LAUNCH, str(marks), *words, *memory],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TERM": "dumb"},
        )
        assert process.stdout is not None
        lines: list[Line] = []
        threading.Thread(target=read, args=(process.stdout, lines), daemon=True).start()
        try:
            return [kill_one(process, lines, marks, number % ranks) for number in range(1, repeats + 1)]
        finally:
            process.terminate()
            process.wait(60)


def kill_one(process: "subprocess.Popen[str]", lines: list[Line], marks: Path, rank: int) -> Loss:
    """Kill a rank between two checkpoints, and wait for the end of the next step."""
    first = len(lines)
    wait(
        process,
        lines,
        lambda: any(step > EVERY and step % EVERY == EVERY // 2 for step in steps(lines[first:])),
    )
    processes = [mark for mark in read_marks(marks) if mark.name == PROCESS]
    num_ranks = max(mark.rank for mark in processes) + 1
    kill, first = time.monotonic(), len(lines)
    os.kill(next(mark.pid for mark in reversed(processes) if mark.rank == rank), signal.SIGKILL)
    wait(process, lines, lambda: find(lines, first, AGAIN) is not None)
    again = find(lines, first, AGAIN)
    assert again is not None
    wait(process, lines, lambda: len(of(marks, "stepped", lines[again].time)) >= num_ranks)
    wait(process, lines, lambda: len(steps(lines[again:])) > 0)
    noticed = of(marks, NOTICED, kill)
    times = [kill, max(mark.time for mark in noticed if mark.time < lines[again].time), lines[again].time]
    for name in list(PARTS.values())[2:]:
        # The first mark of each rank after the restart.
        reached = {mark.rank: mark.time for mark in reversed(of(marks, name, lines[again].time))}
        times.append(max(times[-1], *reached.values()))
    repeated = steps(lines[first - 1 : again])[-1:] or [steps(lines[:first])[-1]]
    return Loss([end - start for start, end in pairwise(times)], repeated[0] - steps(lines[again:])[0] + 1)


def read_marks(marks: Path) -> list[Mark]:
    """Read all marks, in the order of their times."""
    found = (Mark(*json.loads(line)) for line in marks.read_text().splitlines() if line.endswith("]"))
    return sorted(found, key=lambda mark: mark.time)


def of(marks: Path, name: str, start: float) -> list[Mark]:
    """Return the marks of a name from a time on."""
    return [mark for mark in read_marks(marks) if mark.name == name and mark.time >= start]


def read(stream: IO[str], lines: list[Line]) -> None:
    """Append the lines of a stream until its end."""
    lines.extend(Line(time.monotonic(), text) for text in stream)


def wait(process: "subprocess.Popen[str]", lines: Sequence[Line], is_there: Callable[[], bool]) -> None:
    """Wait until a condition holds.

    Raises:
        RuntimeError: The launcher ended before.
    """
    while not is_there():
        if process.poll() is not None:
            message = f"the launcher ended with code {process.returncode}: {lines[-1:]}"
            raise RuntimeError(message)
        time.sleep(0.005)


def steps(lines: Sequence[Line]) -> list[int]:
    """Return the numbers of the steps in the lines."""
    found = (STEP.match(line.text) for line in lines)
    return [int(match[1]) for match in found if match]


def find(lines: Sequence[Line], first: int, text: str) -> int | None:
    """Return the index of the first line with a text, from `first` on; None without one."""
    return next((index for index in range(first, len(lines)) if text in lines[index].text), None)


if __name__ == "__main__":
    if sys.argv[1:2] == [LAUNCH]:
        launch(Path(sys.argv[2]), sys.argv[3:])
    else:
        main()
