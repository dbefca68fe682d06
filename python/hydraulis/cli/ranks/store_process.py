"""The process that serves the store of local ranks, in which they meet, give signs of life and report losses.

In rank 0 the store would stop with that rank: the others would find it by their timeouts alone, and could not
agree on who is left.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hydraulis.cli.ranks.forked_rank import ForkedRank, InheritedFile

LOOPBACK = "127.0.0.1"


@contextmanager
def served_store(port: int) -> Iterator[int]:
    """Serve the store of the ranks in a process of its own; yield the number of a file for all ranks.

    The store ends when no process has the file open, so it outlives the ranks also if this process is killed.
    """
    reader, writer = os.pipe()
    try:
        store = ForkedRank(serve_store, port, InheritedFile(reader))
    except BaseException:
        os.close(writer)
        raise
    finally:
        os.close(reader)
    try:
        yield writer
    finally:
        os.close(writer)
        store.kill()
        store.wait()


def serve_store(port: int, ranks: int) -> None:
    """Serve a store until all ranks have ended.

    Args:
        port: Port of the loopback interface.
        ranks: Number of a pipe's reading end, whose writing ends the ranks have.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    os.setpgid(0, 0)
    with suppress(OSError):
        Path("/proc/self/comm").write_text("hydraulis-store")
    store = TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False)
    # Only the end of the last writer ends the wait.
    os.read(ranks, 1)
    del store
