"""Recognises the loss of a rank, and finds the ranks that still answer (liveness check)."""

import os
import re
import socket
import time
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hydraulis.errors import HydraulisError

# A gloo error starts with the path of a gloo source file.
_GLOO = re.compile(r"\[\S*gloo/transport/\S*\] ")


def is_lost(error: BaseException) -> bool:
    """Return whether an error means that another rank can no longer be reached."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and _GLOO.match(str(error)) is not None
    )


def lost_rank(error: BaseException, then: str = "start again") -> HydraulisError:
    """Build the error of a rank that lost the connection to another one.

    Args:
        error: Error of the failed communication.
        then: Remedy after the cause is removed, as the end of the message.
    """
    # The sentences after gloo's first one are advice for developers of distributed programs.
    why = _GLOO.sub("", str(error).split("\n")[0]).split(". ")[0]
    message = (
        f"another rank ended, or did not answer within train.timeout_s ({why}): its report or torchrun's has "
        f"the cause; a rank that SIGKILL ended may have run out of memory; {then}"
    )
    return HydraulisError(message, code="lost_rank")


# Timeout of torchrun's store.
_STORE_S = 5.0
_POLL_S = 0.05


class RollCall:
    """One rank's access to the liveness check in torchrun's store.

    The store outlives every rank, and restarts of the ranks by torchrun.

    Raises:
        RuntimeError: The store cannot be reached; every method raises it too.
    """

    def __init__(self) -> None:
        self._rank, self._world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._prefix = f"hydraulis/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self._store = TCPStore(host, port, timeout=timedelta(seconds=_STORE_S))

    def sign_in(self) -> None:
        """Store this rank's host name at the start, for a later report."""
        self._store.set(self._host_key(self._rank), socket.gethostname())

    def answer(self) -> bool:
        """Record that this rank still runs; return whether it is the first rank to answer."""
        self._store.set(self._answer_key(self._rank), "")
        return self._store.add(f"{self._prefix}/answers", 1) == 1

    def num_answers(self) -> int:
        """Return the number of ranks that have answered."""
        return self._store.add(f"{self._prefix}/answers", 0)

    def missing(self, patience_s: float) -> list[int]:
        """Wait at most `patience_s` seconds for all ranks to answer, and return those that did not."""
        deadline = time.monotonic() + patience_s
        while self.num_answers() < self._world_size and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return [rank for rank in range(self._world_size) if not self._store.check([self._answer_key(rank)])]

    def named(self, ranks: Sequence[int]) -> str:
        """Format ranks with their hosts: `rank 3 (node-1), ranks 4, 5 (node-2)`."""
        by_host: defaultdict[str, list[int]] = defaultdict(list)
        for rank in ranks:
            by_host[self._host_of(rank)].append(rank)
        return ", ".join(
            f"{'rank' if len(of_host) == 1 else 'ranks'} {', '.join(map(str, of_host))} ({host})"
            for host, of_host in by_host.items()
        )

    def _host_of(self, rank: int) -> str:
        key = self._host_key(rank)
        return self._store.get(key).decode() if self._store.check([key]) else "host not known"

    def _host_key(self, rank: int) -> str:
        return f"{self._prefix}/host/{rank}"

    def _answer_key(self, rank: int) -> str:
        return f"{self._prefix}/answer/{rank}"
