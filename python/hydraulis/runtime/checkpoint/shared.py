"""Checks that all ranks see the same folder: several nodes need a shared file system."""

import socket
import time
import uuid
from pathlib import Path

import torch.distributed as dist

from hydraulis.errors import InvalidInputError
from hydraulis.runtime.checkpoint.shard import write_durably
from hydraulis.runtime.ranks.every_rank import on_every_rank
from hydraulis.runtime.ranks.rank_zero import from_rank_zero, on_rank_zero

# A network file system may show a new file after a delay.
PATIENCE_S = 10.0
_PAUSE_S = 0.1


def check_shared(folder: Path, *, patience_s: float = PATIENCE_S) -> None:
    """Check that every rank sees a file that rank 0 writes into a folder. Collective.

    Both errors are raised on every rank.

    Args:
        folder: Folder that exists for rank 0.
        patience_s: Seconds that a rank waits for the file to appear.

    Raises:
        InvalidInputError: A rank does not see the file (code `folder_not_shared`).
        HydraulisError: Rank 0 cannot write into the folder (code `file_unwritable`).
    """
    # A new random name suffices: no cache of another node contains it.
    token = Path(from_rank_zero(lambda: str(_written(folder))))
    try:
        on_every_rank(lambda: _look_for(token, patience_s))
    finally:
        on_rank_zero(lambda: token.unlink(missing_ok=True))


def _written(folder: Path) -> Path:
    path = folder / f".shared-{uuid.uuid4().hex}"
    write_durably(path, lambda unfinished: unfinished.write_bytes(b""))
    return path


def _look_for(token: Path, patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while not token.is_file():
        if time.monotonic() > deadline:
            message = (
                f"rank {dist.get_rank()} on {socket.gethostname()} does not see the file that rank 0 wrote "
                f"into {token.parent}: set output.directory to a folder that all nodes share"
            )
            raise InvalidInputError(message, code="folder_not_shared")
        time.sleep(_PAUSE_S)
