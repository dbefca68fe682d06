"""The process that serves the store of local ranks, in which they meet, give signs of life and report losses.

In rank 0 the store would stop with that rank: the others would find it by their timeouts alone, and could not
agree on who is left.
"""

import os
from contextlib import suppress
from pathlib import Path

LOOPBACK = "127.0.0.1"


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
