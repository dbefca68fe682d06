"""Several ranks on one CUDA device: a mode for tests, in which times have no meaning.

NCCL refuses two ranks of one host on one device ("Duplicate GPU detected", NCCL 2.28, init.cc). Up to NCCL
2.29 two ranks count as ranks of different hosts if NCCL_HOSTID differs; they exchange over the loopback
interface. From NCCL 2.30 on the check is by the device's UUID, and NCCL_MULTI_RANK_GPU_ENABLE=1 leaves it
out.
"""

import os
import socket
from collections.abc import Mapping

import torch
import torch.distributed as dist

SHARE_VARIABLE = "HYDRAULIS_SHARE_DEVICES"
# Share of a device's memory that its ranks' allocators may take together. The rest is for their contexts and
# communicators.
_ALLOCATORS_SHARE = 0.9
# Each rank's communicators run at most two blocks and hold small buffers, because kernels of all ranks must
# fit the device. The transports between devices and hosts are off.
_NCCL_SETTINGS = {
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_CUMEM_HOST_ENABLE": "0",
    "NCCL_MAX_CTAS": "2",
    "NCCL_BUFFSIZE": str(1 << 20),
}
# Torch refuses symmetric buffers of two ranks on one device otherwise.
_TORCH_SETTINGS = {"TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1"}
# Settings of NCCL's documentation for several ranks on one device, and the first version that has them.
_MULTI_RANK_SETTINGS = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NET_GDR_LEVEL": "LOC"}
_MULTI_RANK_VERSION = (2, 30)


def sharing_requested() -> bool:
    """Return whether the environment permits several ranks on one device."""
    return os.environ.get(SHARE_VARIABLE) == "1"


def ranks_per_device(device: torch.device) -> int:
    """Return the largest number of this node's ranks that share one CUDA device; 1 where none is shared."""
    if device.type != "cuda" or not sharing_requested():
        return 1
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, -(-ranks // torch.cuda.device_count()))


def memory_share(device: torch.device) -> float | None:
    """Return the share of the device's memory for this rank's allocator; None if the device is not shared."""
    ranks = ranks_per_device(device)
    return None if ranks == 1 else _ALLOCATORS_SHARE / ranks


def set_nccl_up() -> None:
    """Let NCCL accept several ranks on one device, unless the environment sets otherwise.

    NCCL reads the variables when it makes its first communicator.
    """
    for name, value in _settings(os.environ).items():
        os.environ.setdefault(name, value)


def _settings(environment: Mapping[str, str]) -> dict[str, str]:
    rank = environment.get("RANK", environment.get("LOCAL_RANK", "0"))
    settings = _NCCL_SETTINGS | _TORCH_SETTINGS | {"NCCL_HOSTID": f"hydraulis-{rank}"}
    if environment.get("WORLD_SIZE") == environment.get("LOCAL_WORLD_SIZE"):
        # Ranks of one node reach each other over the loopback interface, also where there is no other.
        loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
        settings["NCCL_SOCKET_IFNAME"] = loopback
    if _nccl_version() >= _MULTI_RANK_VERSION:
        settings |= _MULTI_RANK_SETTINGS
    return settings


def _nccl_version() -> tuple[int, ...]:
    return tuple(torch.cuda.nccl.version()) if dist.is_nccl_available() else ()
