"""Trains 2,000 steps with changing strategies and losses of ranks, and measures growth of the processes.

    python benches/soak.py --steps 2000 --losses 4

`hydraulis train --ranks 4 --max-restarts K` trains a tiny model on the CPU with another strategy in each
step, and one rank is killed at a time, at equal distances. Every rank writes down its memory, its open files,
its threads and its process groups. The table states their slopes: within a process, after its first steps,
and from restart to restart for the launcher and the server of its ranks. Linux only.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch.distributed as dist

from hydraulis import Planner
from hydraulis.cli.ranks import local_ranks
from hydraulis.cli.ranks.forked_rank import be_a_rank
from hydraulis.cli.start import command

CONFIG = """
[model]
vocab_size = 256
hidden_size = 32
intermediate_size = 48
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 4

[data]
max_tokens = 64
tokens_per_batch = 1024
index_directory = "{folder}/index"

[[data.sources]]
files = ["{folder}/tokens.npy"]
format = "tokens"

[train]
steps = {steps}
seed = 1

[optimizer]
learning_rate = 1e-3

[planner]
memory_mib = 64
strategies = ["4x<1>", "2x<tp2>", "1x<pp2>+2x<1>", "1x<tp4>"]
profile_seconds = 2.0

[checkpoint]
every_steps = {every}
memory_folder = "{memory}"

[output]
directory = "{folder}/run"
"""
RANKS = 4
# Steps of a process before its growth is measured: each strategy has made its groups, each buffer has grown.
FIRST_STEPS = 100
LAUNCH = "--launch"


class Sample(NamedTuple):
    """The resources of a process."""

    pid: int
    rank: int
    step: int
    memory: float
    files: int
    threads: int
    groups: int


UNITS = {"memory": "MiB of resident memory", "files": "open files", "threads": "threads", "groups": "groups"}


def main() -> None:
    """Train, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--losses", type=int, default=4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder), arguments.steps, arguments.losses)


def launch(samples: Path, words: Sequence[str]) -> None:
    """Run `hydraulis WORDS` with ranks that write samples, and plan every step by the next strategy."""
    setattr(local_ranks, "be_a_rank", partial(be_a_sampled_rank, samples))  # noqa: B010
    sys.argv = ["hydraulis", *words]
    command()


def be_a_sampled_rank(
    samples: Path, words: Sequence[str], environment: Mapping[str, str], *rest: Any
) -> None:
    """Run a rank that writes samples, in a process that has loaded torch."""
    from hydraulis.runtime import loop
    from hydraulis.runtime.planning.run_planner import RunPlanner

    train_step, own_plan = getattr(loop, "train_step"), RunPlanner.plan  # noqa: B009
    planners: list[Planner] = []

    def sampled(worker: Any, *others: Any) -> Any:
        result = train_step(worker, *others)
        groups = len(dist.distributed_c10d._world.pg_map)
        step = worker.optimizer_shard.optimizer.num_steps
        own = sample(os.getpid(), int(environment["RANK"]), step, groups)
        with samples.open("a") as file:
            file.write(json.dumps(own) + "\n")
        return result

    def plan(self: Any, lengths: Any, targets: Any = None) -> Any:
        if not planners:
            planners.extend(
                Planner(self._profile, self.cluster, strategies=[one], link=self.link)
                for one in self._config.strategies
            )
        planners.append(planners.pop(0))
        self._planner = planners[-1]
        return own_plan(self, lengths, targets)

    setattr(loop, "train_step", sampled)  # noqa: B010
    setattr(RunPlanner, "plan", plan)  # noqa: B010
    be_a_rank(words, environment, *rest)


def sample(pid: int, rank: int = -1, step: int = 0, groups: int = 0) -> Sample:
    """Return the resources of a process."""
    process = Path(f"/proc/{pid}")
    pages = int((process / "statm").read_text().split()[1])
    memory = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    files, threads = (len(list((process / name).iterdir())) for name in ("fd", "task"))
    return Sample(pid, rank, step, memory, files, threads, groups)


def train(folder: Path, steps: int, losses: int) -> None:
    """Train with losses of ranks, and print the growth of all processes."""
    (folder / "memory").mkdir()
    tokens = np.random.default_rng(1).integers(0, 256, (4096, 64), "u2")
    np.save(folder / "tokens.npy", tokens)
    samples, config = folder / "samples", folder / "run.toml"
    config.write_text(
        CONFIG.format(folder=folder, memory=folder / "memory", steps=steps, every=max(1, steps // 4))
    )
    samples.touch()
    words = ["train", str(config), "--ranks", str(RANKS), "--max-restarts", str(max(1, losses))]
    process = subprocess.Popen(
        [sys.executable, __file__, LAUNCH, str(samples), *words],
        stdout=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    above: list[list[Sample]] = []
    try:
        for number in range(1, losses + 1):
            at = number * steps // (losses + 1)
            while (newest := last(samples)) is None or newest.step < at:
                if process.poll() is not None:
                    message = f"the launcher ended with code {process.returncode}"
                    raise RuntimeError(message)
                time.sleep(0.1)
            above.append([sample(pid) for pid in (process.pid, server_of(newest.pid))])
            victims = {one.rank: one.pid for one in read(samples)}
            os.kill(victims[number % RANKS], signal.SIGKILL)
        code = process.wait()
    finally:
        process.terminate()
        process.wait(60)
    found = read(samples)
    left = sorted(path.name for path in (folder / "memory").iterdir())
    num_processes = len({one.pid for one in found})
    say(f"exit code {code}; last step {found[-1].step}; {num_processes} processes of ranks")
    say(f"files left in the memory folder: {left}; slopes per 1,000 steps within a process:\n")
    report(found, above)


def report(samples: Sequence[Sample], above: Sequence[Sequence[Sample]]) -> None:
    """Print the slopes of all resources."""
    by_process = defaultdict(list)
    for one in samples:
        by_process[one.pid].append(one)
    lives = [life[FIRST_STEPS:] for life in by_process.values() if len(life) > 2 * FIRST_STEPS]
    if not lives:
        say(f"no process has trained {2 * FIRST_STEPS} steps")
        return
    columns = "resource", "at the end", "median", "most", "second half, median", "most"
    say(f"| {' | '.join(columns)} | launcher, from restart to restart | server |")
    say("|---" * 8 + "|")
    for name, unit in UNITS.items():
        halves = [life[len(life) // 2 :] for life in lives]
        both = [
            [slope([(one.step, getattr(one, name)) for one in part]) * 1000 for part in parts]
            for parts in (lives, halves)
        ]
        ends = statistics.median(getattr(life[-1], name) for life in lives)
        grown = [
            f"{slope([(number, getattr(row[place], name)) for number, row in enumerate(above)]):+.2f}"
            for place in range(2)
        ]
        if name == "groups":
            grown = ["-", "-"]
        figures = [f"{statistics.median(slopes):+.2f} | {max(slopes):+.2f}" for slopes in both]
        say(f"| {unit} | {ends:.1f} | {' | '.join([*figures, *grown])} |")


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the line with the least squared distances; 0 for fewer than two points."""
    if len(points) < 2:
        return 0.0
    x, y = np.array(points).T
    return float(np.polyfit(x, y, 1)[0])


def server_of(rank: int) -> int:
    """Return the process that a rank was forked from."""
    return int(Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[1])


def read(samples: Path) -> list[Sample]:
    """Read all samples."""
    return [Sample(*json.loads(line)) for line in samples.read_text().splitlines() if line.endswith("]")]


def last(samples: Path) -> Sample | None:
    """Return the last sample; None without one."""
    with samples.open("rb") as file:
        file.seek(max(0, samples.stat().st_size - 4096))
        lines = [line for line in file.read().decode().splitlines() if line.endswith("]")]
    return Sample(*json.loads(lines[-1])) if lines else None


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1:2] == [LAUNCH]:
        launch(Path(sys.argv[2]), sys.argv[3:])
    else:
        main()
