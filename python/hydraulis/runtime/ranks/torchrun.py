"""The environment variables of a rank, which torchrun and `hydraulis train` set."""

import os

from hydraulis.errors import InvalidInputError

# Number of restarts after a failure.
RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"
# Whether another process than rank 0 serves the store.
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
# Number of the open file in which ranks of `hydraulis train` leave the run's folder for those of a restart.
RUN_FILE = "HYDRAULIS_RUN_FILE"
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
