"""Gathers the ranks of one attempt in torchrun's store, before they connect to each other.

torchrun starts all ranks again after a failure (`--max-restarts`) and keeps its store, which still has the
addresses of the ranks before (pytorch #135712, #167288). Each attempt therefore uses keys of its own. The
number of restarts does not identify an attempt: nodes count apart, and a replaced node counts from 0. Rank 0
names the attempt instead, and answers the ranks that are alive: each waits for an answer to its own key.
"""

import time
import uuid
from datetime import timedelta

from torch.distributed import Store  # type: ignore[attr-defined]

_POLL_S = 0.02
_ROOT = "hydraulis"


class Meeting:
    """The way of one rank to the attempt that all ranks take part in.

    Args:
        store: Store of torchrun, which may have keys of earlier attempts.
        rank: Number of this rank.
        world_size: Number of ranks.
        timeout: Most time that a rank waits for the others.
    """

    def __init__(self, store: Store, rank: int, world_size: int, timeout: timedelta) -> None:
        self._store = store
        self._timeout = timeout
        self._rank, self._world_size = rank, world_size
        self._attempt = f"{_ROOT}/{uuid.uuid4().hex}"

    def find(self) -> str:
        """Return the prefix of the attempt's keys; ranks other than 0 wait until rank 0 has named it."""
        if self._rank == 0:
            return self._attempt
        own = uuid.uuid4().hex
        self._store.set(self._arrived(self._rank), own)
        self._wait_for(f"{_ROOT}/{own}")
        self._attempt = self._store.get(f"{_ROOT}/{own}").decode()
        return self._attempt

    def complete(self) -> None:
        """Wait until every rank has found the attempt."""
        self._store.set(self._present(self._rank), "")
        if self._rank == 0:
            self._receive()
            self._store.set(f"{self._attempt}/complete", "")
        else:
            self._wait_for(f"{self._attempt}/complete")

    def _receive(self) -> None:
        """Name the attempt to each rank that arrives, until all are present."""
        deadline = time.monotonic() + self._timeout.total_seconds()
        absent, answered = list(range(1, self._world_size)), dict[int, bytes]()
        while absent:
            for rank in absent:
                if self._store.check([self._arrived(rank)]):
                    own = self._store.get(self._arrived(rank))
                    if answered.get(rank) != own:
                        # An answer to a rank of an earlier attempt is read by no rank.
                        self._store.set(f"{_ROOT}/{own.decode()}", self._attempt)
                        answered[rank] = own
            absent = [rank for rank in absent if not self._store.check([self._present(rank)])]
            if time.monotonic() > deadline:
                raise TimeoutError
            if absent:
                time.sleep(_POLL_S)

    def _wait_for(self, key: str) -> None:
        self._store.wait([key], self._timeout)

    def _arrived(self, rank: int) -> str:
        return f"{_ROOT}/arrived/{rank}"

    def _present(self, rank: int) -> str:
        return f"{self._attempt}/present/{rank}"
