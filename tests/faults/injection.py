"""Faults at chosen places of a rank: signals that no handler sees, errors and delays."""

import errno
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch.distributed as dist

from hydraulis import Plan
from hydraulis.data.dataset import Dataset
from hydraulis.data.tokens import SequenceTokens
from hydraulis.runtime import build, loop
from hydraulis.runtime.batch import Batch
from hydraulis.runtime.checkpoint import saver
from hydraulis.runtime.pipeline import executor
from hydraulis.runtime.pipeline.stage import Stage
from hydraulis.runtime.ranks import joining
from hydraulis.runtime.recovery import copy_file, survey
from hydraulis.runtime.recovery.keeper import StateKeeper
from hydraulis.runtime.redistribute.exchange_groups import ExchangeGroup
from hydraulis.runtime.redistribute.summed_exchanges import SummedExchanges
from hydraulis.runtime.state.update_rule import UpdateRule
from hydraulis.runtime.worker import Worker

# By place: the object with the function that the fault is in, and the function's name.
PLACES: dict[str, tuple[Any, str]] = {
    "start": (build, "_build"),
    "planner": (Batch, "plan"),
    "joining": (joining, "_connect"),
    "recovery": (survey, "exchange_values"),
    "forward": (Stage, "forward"),
    "backward": (executor._Run, "backward"),
    "exchange": (ExchangeGroup, "start"),
    "reduction": (SummedExchanges, "complete"),
    "sum": (Worker, "sum_step"),
    "optimizer": (UpdateRule, "step"),
    "copy": (copy_file, "write_tensors"),
    "save": (saver, "write_shard"),
}
# Places before the first step, where a step has no meaning.
STEP, STRIKE = "step", "strike"
BEFORE_STEPS = ("start", "joining", "recovery")


Kind = Literal[
    "SIGKILL",
    "SIGKILL with the node's memory",
    "SIGSTOP",
    "SIGSTOP of the store",
    "SIGKILL of the fork server",
    "full disk",
    "error",
    "delay",
    "other setting",
    "other data",
    "other plan",
]
# Kinds that the rank's start carries out, wherever their place is.
OF_THE_START = ("other setting", "other data", "other plan")
# Seconds of a delay: longer than the silence after which a rank is lost.
DELAY_S = 5.0


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of one rank.

    Attributes:
        place: Name of the place.
        rank: Number of the rank.
        step: Step of the fault, or of the state that is copied or saved; 0 before the first step.
        kind: Kind of the fault. `other setting` is in the rank's command line, `other data` in what it reads,
            and `other plan` in the plan that it receives, wherever their place is. `SIGKILL with the node's
            memory` removes the copies that the rank wrote, as the loss of its node does.
        is_after: Whether the fault comes after the function of the place, not before it.
    """

    place: str
    rank: int
    step: int = 0
    kind: Kind = "SIGKILL"
    is_after: bool = False


def install(faults: Sequence[Fault], events: Path) -> None:
    """Install the faults of this rank in this process, record rank 0's steps, and wait for each step's copy.

    Args:
        faults: Faults of this rank in this start.
        events: File of the events of all starts.
    """
    step = [0]
    train_step: Callable[..., Any] = getattr(loop, "train_step")  # noqa: B009

    def counted(worker: Worker, *rest: Any) -> Any:
        step[0] = worker.optimizer_shard.optimizer.num_steps + 1
        if any(fault.kind == "other plan" and fault.step == step[0] for fault in faults):
            record(events, STRIKE, step[0])
            rest = (other_plan(rest[0]), *rest[1:])
        result = train_step(worker, *rest)
        if dist.get_rank() == 0:
            record(events, STEP, step[0])
        return result

    setattr(loop, "train_step", counted)  # noqa: B010
    # Steps of this size end before their copies do, which would leave the newest whole copy to chance.
    after = StateKeeper.after

    def waiting(keeper: StateKeeper, of_step: int) -> None:
        after(keeper, of_step)
        if keeper._pending is not None:
            keeper._pending.call.ended.wait()

    setattr(StateKeeper, "after", waiting)  # noqa: B010
    if any(fault.kind == "other data" for fault in faults):
        _read_other_data()
    for fault in faults:
        if fault.kind not in OF_THE_START:
            _install(fault, step, events)


def _read_other_data() -> None:
    """Change the last token of every sequence that this rank reads."""
    read = Dataset.read

    def other(data: Dataset, index: int) -> SequenceTokens:
        tokens = read(data, index)
        assert isinstance(tokens, np.ndarray)
        changed = tokens.copy()
        changed[-1] ^= 1
        return changed

    setattr(Dataset, "read", other)  # noqa: B010


def _install(fault: Fault, step: list[int], events: Path) -> None:
    owner, name = PLACES[fault.place]
    function = getattr(owner, name)
    has_paused = False

    def faulty(*arguments: Any, **named: Any) -> Any:
        nonlocal has_paused
        is_due = (fault.place in BEFORE_STEPS or step[0] == fault.step) and not has_paused
        # A step calls most places several times; one delay is enough.
        has_paused = has_paused or (is_due and fault.kind == "delay")
        if is_due and not fault.is_after:
            strike(fault, events)
        result = function(*arguments, **named)
        if is_due and fault.is_after:
            strike(fault, events)
        return result

    setattr(owner, name, faulty)


def strike(fault: Fault, events: Path) -> None:
    """Carry a fault out; a stopped process goes on after SIGCONT.

    Raises:
        OSError: The fault is a full disk.
        ZeroDivisionError: The fault is an error.
    """
    record(events, STRIKE, fault.step)
    if fault.kind == "full disk":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if fault.kind == "error":
        raise ZeroDivisionError
    if fault.kind == "delay":
        time.sleep(DELAY_S)
        return
    if fault.kind == "SIGSTOP of the store":
        os.kill(store_process(), signal.SIGSTOP)
        return
    if fault.kind == "SIGKILL of the fork server":
        os.kill(os.getppid(), signal.SIGKILL)
        return
    if fault.kind == "SIGKILL with the node's memory":
        for copy in (events.parent / "memory").glob(f"*/*.by-{fault.rank:05d}.*"):
            copy.unlink()
    os.kill(os.getpid(), signal.SIGSTOP if fault.kind == "SIGSTOP" else signal.SIGKILL)
    # Another thread of the process may take the signal first.
    time.sleep(0.1)


def other_plan(plan: Plan) -> Plan:
    """Return the plan with the sequences of each micro-batch in reverse: messages keep their sizes."""
    document = json.loads(plan.to_json())
    for replica in document["replicas"]:
        replica["micro_batches"] = [ids[::-1] for ids in replica["micro_batches"]]
    other = Plan.from_json(json.dumps(document))
    assert other != plan
    return other


def store_process() -> int:
    """Return the process that serves the store of this rank."""
    for comm in Path("/proc").glob("[0-9]*/comm"):
        status = comm.with_name("stat").read_text().rpartition(")")[2].split()
        if comm.read_text() == "hydraulis-store\n" and int(status[1]) == os.getppid():
            return int(comm.parent.name)
    raise AssertionError


class Event(NamedTuple):
    """An event of a rank.

    Attributes:
        kind: `STEP` or `STRIKE`.
        step: Number of the step.
        time: Time of the system's monotonic clock.
    """

    kind: str
    step: int
    time: float


def record(events: Path, kind: str, step: int) -> None:
    """Append an event."""
    with events.open("a") as file:
        file.write(json.dumps([kind, step, time.monotonic()]) + "\n")


def read_events(events: Path) -> list[Event]:
    """Return the events in the order of their times."""
    lines = events.read_text().splitlines() if events.exists() else []
    return sorted((Event(*json.loads(line)) for line in lines), key=lambda event: event.time)
