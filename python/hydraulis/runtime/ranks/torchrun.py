"""Checks the environment variables that torchrun sets for its ranks."""

import os

from hydraulis.errors import InvalidInputError

_SET_BY_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def require_torchrun() -> None:
    """Check that torchrun started this process.

    Raises:
        InvalidInputError: The process was not started by torchrun (code `not_torchrun`).
    """
    missing = [name for name in _SET_BY_TORCHRUN if name not in os.environ]
    if missing:
        message = (
            f"{', '.join(missing)} not set, which torchrun sets: start training as "
            "hydraulis train RUN.toml --ranks N, or by torchrun on several machines"
        )
        raise InvalidInputError(message, code="not_torchrun")
