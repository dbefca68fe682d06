"""Torch's flight recorder of NCCL's collectives, and the settings by which torch ends no process by itself.

By default a collective that takes longer than its timeout ends the process by SIGABRT from a thread of
torch: before any report, and minutes after the loss. Here the host notices a loss (`host_wait.py`), and the
recorder's entries say which collective of which group the ranks were in. `torchfrtrace` reads a folder of
dumps. Torch's watchdog also records errors, such as a broken link between nodes. With these settings they end
nothing, and the kernels of the other ranks wait on: the host asks for them.
"""

import os
from contextlib import suppress
from pathlib import Path

import torch
from torch.distributed import distributed_c10d

_CUDA = torch.device("cuda")
# Name of torch's value for no error.
_NO_ERROR = "SUCCESS"
_SETTINGS = {
    # No exception in the thread that watches the collectives, and no end of the process by the thread that
    # watches that one (ProcessGroupNCCL.cpp: ErrorHandlingMode NoHandling, HeartbeatMonitor::runLoop).
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    # On a device error (illegal access, ECC) the thread that watches the collectives ends the process before
    # this rank reports it (Watchdog::run).
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    # The host writes its own dumps. Torch's signal for them stays in the store of torchrun's agent, and ranks
    # that torchrun starts again would write dumps too.
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    # Entries of the recorder; a step of 8 micro-batches on 32 layers with tensor parallelism launches some
    # 2,000 collectives.
    "TORCH_FR_BUFFER_SIZE": "2000",
    # The name of the file is read when a dump is written: the run's folder is known later than the groups.
    "TORCH_FR_DUMP_DYNAMIC_FILE_NAME": "1",
}
_FILE = "TORCH_FR_DUMP_TEMP_FILE"
FOLDER = "flight_recorder"
_PREFIX = "nccl_trace_rank_"


def set_up_recorder() -> None:
    """Set torch's variables, unless the environment has them; before the first group is made."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)


def keep_dumps_in(run: Path) -> None:
    """Let dumps of this process go into the folder of the run, unless the environment names another place."""
    os.environ.setdefault(_FILE, str(run / FOLDER / _PREFIX))


def find_nccl_error() -> str | None:
    """Return the name of the first error that a process group has recorded; None without any."""
    for group in tuple(distributed_c10d._world.pg_map):
        # Groups of gloo have no backend for devices, and other backends record no error.
        if _CUDA not in group._device_types:
            continue
        get_error = getattr(group._get_backend(_CUDA), "get_error", None)
        name = _NO_ERROR if get_error is None else str(get_error().name)
        if name != _NO_ERROR:
            return name
    return None


def dump_collectives(rank: int) -> Path | None:
    """Write the recorder's entries of this process.

    Returns:
        The file, whose name ends with the rank; None without a folder, or if it cannot be written.
    """
    prefix = os.environ.get(_FILE)
    if prefix is None:
        return None
    # A failure here must not replace the error that is reported.
    with suppress(OSError, ImportError, RuntimeError):
        # Builds without NCCL lack it.
        from torch._C._distributed_c10d import _dump_nccl_trace  # type: ignore[attr-defined]

        file = Path(f"{prefix}{rank}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_dump_nccl_trace())
        return file
    return None
