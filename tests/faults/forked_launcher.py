"""`hydraulis train --ranks N` whose ranks are forked from a process that has loaded torch.

The launcher is the real one (`run_local_ranks`), with the tests' fork server. A rank runs the whole command.
"""

import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from faults.injection import Event, Fault, install, read_events
from hydraulis.cli.ranks import forked_rank, local_ranks
from hydraulis.cli.ranks.forked_rank import be_a_rank
from hydraulis.data.sources.stdlib import StandardLibrary
from hydraulis.errors import HydraulisError
from hydraulis.runtime.ranks.shared_devices import SHARE_VARIABLE, set_nccl_up
from hydraulis.runtime.ranks.torchrun import RESTART_COUNT
from ranks import _context, kind_of_ranks
from train.train_workers import load_made_up

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
    ranks_per_node: int | None = None,
) -> Ended:
    """Train, with faults in each start, and as many restarts as there are starts with faults.

    Args:
        folder: Folder for the ranks' output.
        num_ranks: Number of ranks.
        arguments: Command line of `hydraulis`.
        faults: Faults by start.
        grace_s: Seconds that the ranks get after the first failure.
        ranks_per_node: Number of ranks of each pretended node; all of them by default.
    """
    starts: list[float] = []
    fork, of_rank = local_ranks._fork, local_ranks._of_rank

    def of_node(rank: int, environment: Mapping[str, str]) -> Mapping[str, str]:
        size = ranks_per_node or num_ranks
        own = {"LOCAL_RANK": str(rank % size), "LOCAL_WORLD_SIZE": str(size)}
        return {**of_rank(rank, environment), **own}

    def start(life: int, rank: int, *rest: Any) -> Any:
        if rank == 0:
            starts.append(time.monotonic())
        return fork(life, rank, *rest)

    # The launcher writes the output of a failed rank as bytes.
    err = io.TextIOWrapper(io.BytesIO(), write_through=True)
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(err):
        patch.setattr(forked_rank, "_context", _context)
        patch.setattr(local_ranks, "can_fork", lambda _is_stopped: True)
        patch.setattr(local_ranks, "_fork", start)
        patch.setattr(local_ranks, "_of_rank", of_node)
        patch.setattr(local_ranks, "be_a_rank", partial(_be_a_rank, folder, faults))
        code: int | str
        try:
            code = local_ranks.run_local_ranks(num_ranks, arguments, grace_s, len(faults))
        except HydraulisError as error:
            code = error.code
            err.write(f"{error}\n")
    err.seek(0)
    logs = [(folder / f"start-{number}-rank-0.txt") for number in range(len(starts))]
    out = "".join(log.read_text() for log in logs if log.exists())
    return Ended(code, out, err.read(), starts, read_events(folder / EVENTS))


def _be_a_rank(
    folder: Path,
    faults: Sequence[Sequence[Fault]],
    words: Sequence[str],
    environment: Mapping[str, str],
    *rest: Any,
) -> None:
    rank, number = int(environment["RANK"]), int(environment[RESTART_COUNT])
    sys.stdout = sys.stderr = (folder / f"start-{number}-rank-{rank}.txt").open("w", buffering=1)
    _choose_devices(environment)
    own = [fault for fault in faults[number] if fault.rank == rank] if number < len(faults) else []
    setattr(StandardLibrary, "load", load_made_up)  # noqa: B010
    install(own, folder / EVENTS)
    other = [word for fault in own if fault.kind == "other setting" for word in ("--set", OTHER_SETTING)]
    be_a_rank([*words, *other], environment, *rest)


def _choose_devices(environment: Mapping[str, str]) -> None:
    """Hide CUDA devices from a rank on the CPU; on CUDA, let all ranks share those of this machine."""
    if kind_of_ranks() == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return
    os.environ |= {
        **environment,
        SHARE_VARIABLE: "1",
        "NCCL_SOCKET_IFNAME": environment["GLOO_SOCKET_IFNAME"],
    }
    # A pretended node of one rank has enough devices by its own count.
    set_nccl_up()


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return the losses and gradient norms of a run, by step."""
    fields = ("step", "loss", "gradient_norm")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{name: json.loads(line)[name] for name in fields} for line in lines]
