"""Errors of NCCL that torch's watchdog has recorded, such as a broken link between nodes.

The watchdog ends no process here (`flight_recorder.py`), and the kernels of the other ranks wait on.
"""

import torch
from torch.distributed import distributed_c10d

_CUDA = torch.device("cuda")
# Name of torch's value for no error.
_NONE = "SUCCESS"


def find_nccl_error() -> str | None:
    """Return the name of the first error of a process group; None without any."""
    for group in tuple(distributed_c10d._world.pg_map):
        # Groups of gloo have no backend for devices, and other backends record no error.
        if _CUDA not in group._device_types:
            continue
        get_error = getattr(group._get_backend(_CUDA), "get_error", None)
        name = _NONE if get_error is None else str(get_error().name)
        if name != _NONE:
            return name
    return None
