"""The liveness check: which ranks of an attempt still live, as they say it in torchrun's store.

Each rank beats while it lives. After a loss one rank calls all, and each living rank answers from a thread,
also while its main thread is blocked. A rank knows at once of the ended and stopped processes on its own
node, so a lost rank is named exactly unless its whole node is gone. The error of a rank that lost another one
is made here too (`lost_rank`, `broken_connection`).
"""

import json
import os
import re
import socket
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from hydraulis.errors import HydraulisError
from hydraulis.text.values import name_ranks

# Most time that a living rank takes to answer a call.
ANSWER_S = 5.0
_POLL_S = 0.05
# The states of a rank after a call: the first two are those of a living rank. A rank that left has done its
# work, and no rank waits for it.
WAITING, WORKING, STOPPED, ENDED, LEFT = "waiting", "working", "stopped", "ended", "left"
# The states of a rank that does not answer: of one that never signed in, and of any other.
ABSENT, SILENT = "absent", "silent"
# Time after a call in which a rank may still sign in.
_SIGN_IN_S = 1.0
# Number that Linux draws at each start of a node (random(4)); all containers of a node have the same.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Process:
    """The process of a rank.

    Several nodes may have one name, such as `localhost`, and the first namespace of every Linux has the same
    identity. Only `boot` differs between such nodes.

    Attributes:
        host: Name of its node.
        pid: Number of the process in its namespace.
        namespace: Identity of the namespace of process numbers; empty if the system has none.
        boot: Number of the node's last start (`_BOOT_ID`); empty if the system has none.
    """

    host: str
    pid: int
    namespace: str
    boot: str

    @classmethod
    def own(cls) -> "Process":
        """Return this process."""
        return cls._of_this_node(os.getpid())

    @classmethod
    def launcher(cls) -> "Process":
        """Return the process that started this one."""
        return cls._of_this_node(os.getppid())

    @classmethod
    def _of_this_node(cls, pid: int) -> "Process":
        try:
            namespace = str(Path("/proc/self/ns/pid").readlink())
        except OSError:
            namespace = ""
        try:
            boot = _BOOT_ID.read_text().strip()
        except OSError:
            boot = ""
        return cls(socket.gethostname(), pid, namespace, boot)

    def is_visible(self) -> bool:
        """Return whether the system of this node knows the process by its number."""
        own = Process.own()
        return bool(own.namespace) and replace(self, pid=own.pid) == own

    def state(self) -> str | None:
        """Return `ENDED` or `STOPPED`, as the system of this node knows it; None if neither is known."""
        if not self.is_visible():
            return None
        try:
            # proc(5): the state follows the name, which may contain parentheses.
            letter = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return ENDED
        return {"Z": ENDED, "X": ENDED, "T": STOPPED, "t": STOPPED}.get(letter)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of one rank to a call, or the finding of another rank about it.

    Attributes:
        state: State of the rank.
        activity: Function in which its main thread works.
        host: Name of its node; empty if it is not known.
    """

    state: str
    activity: str = ""
    host: str = ""


def reporter(answers: Sequence[Answer]) -> int:
    """Return the rank that prints the report: the lowest living one, whose progress line is on the screen."""
    living = (rank for rank, answer in enumerate(answers) if answer.state in (WAITING, WORKING))
    return next(living, 0)


def describe(answers: Sequence[Answer]) -> str:
    """Name the ranks that caused a loss, such as `rank 3 (node-1) ended; no answer from rank 4 (node-2)`.

    If all ranks live, those that still work are the ones that the others wait for.
    """
    by_state: defaultdict[str, list[int]] = defaultdict(list)
    for rank, answer in enumerate(answers):
        by_state[answer.state].append(rank)
    found = [_named(answers, by_state[ENDED], "{ranks} ended")] if by_state[ENDED] else []
    if by_state[STOPPED]:
        found.append(_named(answers, by_state[STOPPED], "{ranks} stopped by a signal (SIGCONT continues it)"))
    if by_state[ABSENT]:
        found.append(f"{name_ranks(by_state[ABSENT])} had not joined")
    if by_state[SILENT]:
        found.append(_named(answers, by_state[SILENT], "no answer from {ranks}"))
    if not found and by_state[WORKING] and by_state[WAITING]:
        at_work = (
            f"{_named(answers, [rank], '{ranks}')} in {answers[rank].activity}" for rank in by_state[WORKING]
        )
        found.append(f"all ranks answer, and these are still at work: {', '.join(at_work)}")
    return "; ".join(found) or "all ranks answer again"


def _named(answers: Sequence[Answer], ranks: Sequence[int], text: str) -> str:
    """Insert ranks with their hosts into a text: `rank 3 (node-1), ranks 4, 5 (node-2)`."""
    by_host: defaultdict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        by_host[answers[rank].host or "host not known"].append(rank)
    named = ", ".join(f"{name_ranks(of_host)} ({host})" for host, of_host in by_host.items())
    return text.format(ranks=named)


class LivenessCheck:
    """One rank's access to the liveness check.

    Args:
        store: Store of this attempt's keys.
        rank: Number of this rank.
        world_size: Number of ranks.
        neighbours: Ranks on this rank's node, in their order.

    Attributes:
        next_neighbour: The rank after this one on its node, or the node's first rank if this is the last;
            None if `neighbours` is empty.

    Raises:
        RuntimeError: The store cannot be reached; every method raises it.
    """

    def __init__(self, store: Store, rank: int, world_size: int, neighbours: Sequence[int]) -> None:
        self._store = store
        self._rank, self._world_size, self._neighbours = rank, world_size, neighbours
        later = (one for one in neighbours if one > rank)
        self.next_neighbour: int | None = next(later, neighbours[0] if neighbours else None)
        self._beats = self._notices = 0
        # The processes on this node whose ends are not known.
        self._processes: dict[int, Process | None] = {}
        # The processes of ranks whose ends are looked for all the time.
        self._watched: dict[int, Process] = {}

    def sign_in(self) -> None:
        """Store this rank's process, for a later report."""
        self._store.set(f"process/{self._rank}", json.dumps(astuple(Process.own())))
        self.beat()

    def beat(self) -> None:
        """Give a sign of life."""
        self._beats += 1
        self._store.set(f"beat/{self._rank}", str(self._beats))

    def last_beat(self, rank: int) -> bytes | None:
        """Return the last sign of life of a rank; None if it has not signed in, or has left the run."""
        if self._store.check([self._state(rank)]) or not self._store.check([f"beat/{rank}"]):
            return None
        return self._store.get(f"beat/{rank}")

    def leave(self, *, failed: bool = False) -> None:
        """Say that this rank ends, after its work or by an error of its own."""
        self._set_state(self._rank, ENDED if failed else LEFT)

    def call(self, why: str = "") -> None:
        """Ask all ranks to answer.

        Args:
            why: Failure of this rank, by which all others end; empty to find the lost ranks.
        """
        self._store.set("call", why)

    def is_called(self) -> bool:
        """Return whether a rank has called."""
        return bool(self._store.check(["call"]))

    def reason_of_call(self) -> str | None:
        """Return the failure by which a rank has called; empty for another call, and None without one."""
        return self._store.get("call").decode() if self.is_called() else None

    def has_ended(self, rank: int) -> bool:
        """Return whether the process of a rank of this node has ended without a word; asks the system."""
        # A rank may sign in after the first question.
        process = self._watched.get(rank) or self._process(rank)
        if process is not None:
            self._watched[rank] = process
        # A process says first that it leaves, and then ends.
        return process is not None and process.state() == ENDED and not self._store.check([self._state(rank)])

    def answer(self, activity: str | None) -> None:
        """Answer for this rank, and for the lost ones on its node.

        Args:
            activity: Function that the main thread computes in; None if it waits for other ranks.
        """
        self._set_state(self._rank, WAITING if activity is None else WORKING, activity or "")
        self._processes = {rank: self._process(rank) for rank in self._neighbours if rank != self._rank}
        self.answer_for_neighbours()

    def answer_for_neighbours(self) -> None:
        """Answer for the ranks of this node that have ended or are stopped, since the last call.

        The connections of a killed process can close before its end is visible.
        """
        for rank, process in list(self._processes.items()):
            state = process.state() if process is not None else None
            if state is not None:
                self._set_state(rank, state)
                del self._processes[rank]

    def is_first(self, *names: str) -> bool:
        """Return whether this rank is the first one to ask for a task, which one rank carries out."""
        return bool(self._store.add("/".join(("first", *names)), 1) == 1)

    def notify(self, text: str) -> None:
        """Send a message to rank 0."""
        self._store.set(f"notice/{self._store.add('notices', 1)}", text)

    def notified(self) -> str | None:
        """Return the next message to rank 0; None without one."""
        key = f"notice/{self._notices + 1}"
        if not self._store.check([key]):
            return None
        self._notices += 1
        return self._store.get(key).decode()

    def collect(self, patience_s: float = ANSWER_S) -> list[Answer]:
        """Wait at most `patience_s` seconds for the answers of all ranks, and return them by rank."""
        start = time.monotonic()
        states: dict[int, tuple[str, str]] = {}
        while True:
            self.answer_for_neighbours()
            for rank in range(self._world_size):
                if rank not in states and self._store.check([self._state(rank)]):
                    state, activity = json.loads(self._store.get(self._state(rank)))
                    states[rank] = (state, activity)
            waited_s = time.monotonic() - start
            if waited_s > min(_SIGN_IN_S, patience_s):
                absent = (rank for rank in range(self._world_size) if rank not in states)
                states |= {rank: (ABSENT, "") for rank in absent if self._process(rank) is None}
            if len(states) == self._world_size or waited_s > patience_s:
                break
            time.sleep(_POLL_S)
        return [
            Answer(*states.get(rank, (SILENT, "")), host=self._host(rank)) for rank in range(self._world_size)
        ]

    def publish(self, report: str) -> None:
        """Give the report of the loss to all ranks."""
        self._store.set("report", report)

    def published(self) -> str | None:
        """Return the report; None if there is none yet."""
        return self._store.get("report").decode() if self._store.check(["report"]) else None

    def _set_state(self, rank: int, state: str, activity: str = "") -> None:
        self._store.set(self._state(rank), json.dumps([state, activity]))

    def _process(self, rank: int) -> Process | None:
        key = f"process/{rank}"
        return Process(*json.loads(self._store.get(key))) if self._store.check([key]) else None

    def _host(self, rank: int) -> str:
        process = self._process(rank)
        return "" if process is None else process.host

    def _state(self, rank: int) -> str:
        return f"state/{rank}"


# A gloo error starts with the path of a gloo source file.
_GLOO = re.compile(r"\[\S*gloo/transport/\S*\] ")
# The line after NCCL's own description of a failed call (`getNcclErrorDetailStr` in NCCLUtils.hpp).
_NCCL_CAUSE = re.compile(r"^Last error:\s*(\S.*)", re.MULTILINE)
# As NCCL says it of this rank's own device.
_NCCL_FULL_DEVICE = re.compile(r"Cuda failure \d+ 'out of memory'")
# Memory that torch's allocator does not give: of a call of the runtime (`c10_cuda_check_implementation` in
# c10/cuda/CUDAException.cpp), of the driver (`AT_CUDA_DRIVER_CHECK`), of cuBLAS and cuDNN (all three in
# ATen/cuda/Exceptions.h; cuDNN 9 has the longer name), of a kernel that Triton loads (`gpuAssert` in its
# third_party/nvidia/backend/driver.c), and of one that the CuTe DSL loads, whose errors are no RuntimeErrors.
_FULL_DEVICE = re.compile(
    r"CUDA error: out of memory|CUDA driver error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|CUDNN_STATUS_(INTERNAL_ERROR_DEVICE_ALLOCATION|ALLOC)_FAILED|Triton Error \[CUDA\]: out of memory"
    r"|CUDA_ERROR_OUT_OF_MEMORY"
)


def is_lost(error: BaseException) -> bool:
    """Return whether an error means that another rank can no longer be reached."""
    if is_full_device(error):
        return False
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and _GLOO.match(str(error)) is not None
    )


def is_full_device(error: BaseException) -> bool:
    """Return whether torch's allocator, NCCL for a connection, or a library found no room on the device."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    if isinstance(error, HydraulisError):
        # It has a remedy of its own, and may repeat the text of another rank.
        return False
    text = _NCCL_FULL_DEVICE if isinstance(error, dist.DistError) else _FULL_DEVICE
    return text.search(str(error)) is not None


def failure_of(error: BaseException) -> str:
    """Return a failure of this rank alone, for the other ranks; '' if all fail alike or are interrupted."""
    if not isinstance(error, Exception) or (isinstance(error, HydraulisError) and error.is_everywhere):
        return ""
    name = f"error [{error.code}]" if isinstance(error, HydraulisError) else type(error).__name__
    return ": ".join([name, *str(error).splitlines()[:1]])


def lost_rank(why: str, then: str = "start again") -> HydraulisError:
    """Build the error of a rank that lost another one.

    Args:
        why: Cause, where to read about it, and the setting that allows it.
        then: Remedy after the cause is removed, as the end of the message.
    """
    return HydraulisError(f"{why}; {then}", code="lost_rank")


def broken_connection(error: BaseException, then: str = "start again") -> HydraulisError:
    """Build the error of a rank that lost the connection to another one (see `is_lost`).

    Args:
        error: Error of gloo, NCCL or the store.
        then: Remedy, as of `lost_rank`.
    """
    # The sentences after gloo's first one are advice for developers of distributed programs.
    why = _GLOO.sub("", str(error).split("\n")[0]).split(". ")[0]
    if cause := _NCCL_CAUSE.search(str(error)):
        why += f": {cause[1].rstrip('. ')}"
    text = (
        f"the connection to another rank broke ({why}): that rank's report has the cause, or torchrun's; a "
        "rank that SIGKILL ended may have run out of memory, and one that is only slow needs a longer "
        "train.timeout_s"
    )
    return lost_rank(text, then)
