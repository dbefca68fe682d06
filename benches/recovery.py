"""Measures the time from the kill of a rank to the end of the next step, and its parts.

    python benches/recovery.py --ranks 4 8 --repeats 3

`hydraulis train --ranks N --max-restarts K` trains a small model on the CPU. One rank is killed at a time,
and the launcher's output is read with the time of each line. With `checkpoint.memory_folder` the run
continues from the copy of the last step; without it, from a checkpoint of every 20 steps.
"""

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import IO, NamedTuple

CONFIG = """
[model]
vocab_size = 1024
hidden_size = 256
intermediate_size = 704
num_hidden_layers = 4
num_attention_heads = 8
num_key_value_heads = 4

[data]
max_tokens = 400
tokens_per_batch = 2048

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
# By part: the text in the line that ends it.
PARTS = {
    "loss noticed, all ranks ended": "starting the ranks again",
    "interpreters, torch, joining, data": "resuming after step",
    "model and state": "writing into",
    "first step": "step ",
}
STEP = re.compile(r"step (\d+)/")


class Line(NamedTuple):
    """A line of output, with the time of its arrival."""

    time: float
    text: str


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
            shown = " | ".join(f"{seconds:.1f}" for seconds in medians)
            repeated = ", ".join(str(one.repeated) for one in losses)
            say(f"| {ranks} | {source} | {shown} | {total:.1f} | {repeated} |")


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def measure(ranks: int, repeats: int, *, from_memory: bool) -> list[Loss]:
    """Train, and kill one rank after another.

    Args:
        ranks: Number of ranks.
        repeats: Number of kills.
        from_memory: Whether to keep copies of the state in memory.
    """
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "run.toml"
        config.write_text(CONFIG.format(ranks=ranks, folder=folder, every=EVERY))
        command = [sys.executable, "-m", "hydraulis", "train", str(config), "--ranks", str(ranks)]
        memory = ["--set", "checkpoint.memory_folder=/dev/shm"] if from_memory else []
        restarts = ["--max-restarts", str(repeats)]
        process = subprocess.Popen(
            [*command, *restarts, *memory],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TERM": "dumb"},
        )
        assert process.stdout is not None
        lines: list[Line] = []
        threading.Thread(target=read, args=(process.stdout, lines), daemon=True).start()
        try:
            return [kill_one(process, lines, number % ranks) for number in range(1, repeats + 1)]
        finally:
            process.terminate()
            process.wait(60)


def kill_one(process: "subprocess.Popen[str]", lines: list[Line], rank: int) -> Loss:
    """Kill a rank between two checkpoints, and wait for the end of the next step."""
    first = len(lines)
    wait(process, lambda: any(step % EVERY == EVERY // 2 for step in steps(lines[first:])))
    pid = rank_processes(process.pid)[rank]
    kill, first = time.monotonic(), len(lines)
    os.kill(pid, signal.SIGKILL)
    times = [kill]
    for text in PARTS.values():
        wait(process, partial(has, lines, first, text))
        found = find(lines, first, text)
        assert found is not None
        first = found + 1
        times.append(lines[found].time)
    before = steps([line for line in lines if line.time < times[1]])
    (continued,) = steps(lines[first - 1 : first])
    return Loss([end - start for start, end in pairwise(times)], before[-1] - continued + 1)


def has(lines: Sequence[Line], first: int, text: str) -> bool:
    """Return whether a line from `first` on has a text."""
    return find(lines, first, text) is not None


def read(stream: IO[str], lines: list[Line]) -> None:
    """Append the lines of a stream until its end."""
    lines.extend(Line(time.monotonic(), text) for text in stream)


def wait(process: "subprocess.Popen[str]", is_there: Callable[[], bool]) -> None:
    """Wait until a condition holds.

    Raises:
        RuntimeError: The launcher ended before.
    """
    while not is_there():
        if process.poll() is not None:
            message = f"the launcher ended with code {process.returncode}"
            raise RuntimeError(message)
        time.sleep(0.005)


def steps(lines: Sequence[Line]) -> list[int]:
    """Return the numbers of the steps in the lines."""
    found = (STEP.match(line.text) for line in lines)
    return [int(match[1]) for match in found if match]


def find(lines: Sequence[Line], first: int, text: str) -> int | None:
    """Return the index of the first line with a text, from `first` on; None without one."""
    return next((index for index in range(first, len(lines)) if text in lines[index].text), None)


def rank_processes(launcher: int) -> list[int]:
    """Return the processes of the ranks, in the order of their starts."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return sorted(map(int, children))


if __name__ == "__main__":
    main()
