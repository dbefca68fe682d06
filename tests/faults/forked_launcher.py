"""`hydraulis train --ranks N` whose ranks are forked from a process that has loaded torch.

The launcher is the real one (`run_local_ranks`); only the start of a rank's process is replaced, which takes
0.1 s and not seconds. A rank runs the whole command, and joins the others through its own store.
"""

import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import pytest

from faults.injection import Event, Fault, install, read_events
from hydraulis.cli.ranks import local_ranks
from hydraulis.cli.ranks.report import ERROR_FILE, PARENT
from hydraulis.cli.start import command
from hydraulis.data.sources.stdlib import StandardLibrary
from hydraulis.errors import HydraulisError
from hydraulis.runtime.ranks.torchrun import RUN_FILE
from ranks import _context
from train.train_workers import load_made_up

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

EVENTS = "events.jsonl"
OTHER_SETTING = "optimizer.learning_rate=0.5"


class Ended(NamedTuple):
    """A launch that has ended.

    Attributes:
        code: Exit code, or the code of the error.
        out: Standard output of the ranks, in the order of the starts.
        err: Standard error of the launcher.
        starts: Time at which each start began, of the system's monotonic clock.
        events: Steps and faults of all starts.
    """

    code: int | str
    out: str
    err: str
    starts: list[float]
    events: list[Event]


def launch(
    folder: Path,
    num_ranks: int,
    arguments: Sequence[str],
    faults: Sequence[Sequence[Fault]] = (),
    *,
    grace_s: float = 10.0,
) -> Ended:
    """Train, with faults in each start, and as many restarts as there are starts with faults.

    Args:
        folder: Folder for the ranks' output.
        num_ranks: Number of ranks.
        arguments: Command line of `hydraulis`.
        faults: Faults by start.
        grace_s: Seconds that the ranks get after the first failure.
    """
    starts: list[float] = []
    restarts = len(faults)

    def start(
        rank: int,
        words: Sequence[str],
        environment: Mapping[str, str],
        files: tuple[IO[bytes] | None, IO[bytes]],
    ) -> "_Rank":
        if rank == 0:
            starts.append(time.monotonic())
        number = len(starts) - 1
        _, errors = files
        of_rank = {
            **environment,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": environment["WORLD_SIZE"],
        }
        # The fork server has none of this process's files.
        paths = {
            name: f"/proc/{os.getpid()}/fd/{number}"
            for name, number in ((ERROR_FILE, errors.fileno()), (RUN_FILE, int(environment[RUN_FILE])))
        }
        of_start = [fault for fault in faults[number] if fault.rank == rank] if number < restarts else []
        log = folder / f"start-{number}-rank-{rank}.txt"
        return _Rank(_be_a_rank, (of_rank, paths, log, list(words), of_start, folder / EVENTS))

    # The launcher writes the output of a failed rank as bytes.
    err = io.TextIOWrapper(io.BytesIO(), write_through=True)
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(err):
        patch.setattr(local_ranks, "_start", start)
        code: int | str
        try:
            code = local_ranks.run_local_ranks(num_ranks, arguments, grace_s, restarts)
        except HydraulisError as error:
            code = error.code
            err.write(f"{error}\n")
    err.seek(0)
    logs = [(folder / f"start-{number}-rank-0.txt") for number in range(len(starts))]
    out = "".join(log.read_text() for log in logs if log.exists())
    return Ended(code, out, err.read(), starts, read_events(folder / EVENTS))


class _Rank:
    """A forked process with the methods of `Popen` that the launcher uses."""

    def __init__(self, function: Any, arguments: tuple[Any, ...]) -> None:
        self._process: BaseProcess = _context().Process(target=function, args=arguments)
        self._process.start()

    def poll(self) -> int | None:
        return self._process.exitcode

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> None:
        self._process.join()

    def kill(self) -> None:
        self._process.kill()

    def terminate(self) -> None:
        self._process.terminate()


def _be_a_rank(
    environment: Mapping[str, str],
    paths: Mapping[str, str],
    log: Path,
    words: Sequence[str],
    faults: Sequence[Fault],
    events: Path,
) -> None:
    opened = {name: str(os.open(path, os.O_RDWR)) for name, path in paths.items()}
    os.environ |= {**environment, **opened, "CUDA_VISIBLE_DEVICES": ""}
    # The parent of a forked process is the fork server, which must not look like a lost launcher.
    os.environ[PARENT] = str(os.getppid())
    sys.stdout = sys.stderr = log.open("w", buffering=1)
    other = [OTHER_SETTING for fault in faults if fault.kind == "other setting"]
    sys.argv = ["hydraulis", *words, *(word for setting in other for word in ("--set", setting))]
    setattr(StandardLibrary, "load", load_made_up)  # noqa: B010
    install(faults, events)
    command()


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return the losses and gradient norms of a run, by step."""
    fields = ("step", "loss", "gradient_norm")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{name: json.loads(line)[name] for name in fields} for line in lines]
