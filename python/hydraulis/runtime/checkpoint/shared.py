"""Whether all ranks see the same folder: on several nodes it must lie on a file system that they share."""

import socket
import time
import uuid
from pathlib import Path

import torch.distributed as dist

from hydraulis.errors import InvalidInputError
from hydraulis.runtime.checkpoint.durable import write_durably
from hydraulis.runtime.ranks.every_rank import on_every_rank
from hydraulis.runtime.ranks.rank_zero import from_rank_zero, on_rank_zero

# A network file system may show a new file late.
PATIENCE_S = 10.0
_PAUSE_S = 0.1


def check_shared(folder: Path, *, patience_s: float = PATIENCE_S) -> None:
    """Check that every rank sees what rank 0 writes into a folder. Collective.

    Args:
        folder: that exists for rank 0.
        patience_s: how long a rank waits for the file to appear.

    Raises:
        InvalidInputError: a rank does not see it (code `folder_not_shared`).
        HydraulisError: rank 0 cannot write there (code `file_unwritable`); both on every rank.
    """
    # The name is as good as the content, and no cache of another node has seen it.
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
                f"rank {dist.get_rank()} on {socket.gethostname()} does not see what rank 0 writes into "
                f"{token.parent}: set output.directory to a folder that all nodes share"
            )
            raise InvalidInputError(message, code="folder_not_shared")
        time.sleep(_PAUSE_S)
