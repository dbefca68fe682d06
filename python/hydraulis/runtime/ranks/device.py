"""Chooses and prepares a rank's device, from the configuration and torchrun's environment variables."""

import os

import torch

from hydraulis.config.kinds import DeviceKind
from hydraulis.errors import HydraulisError, InvalidInputError
from hydraulis.runtime.ranks.shared_devices import (
    SHARE_VARIABLE,
    memory_share,
    ranks_per_device,
    set_nccl_up,
    sharing_requested,
)
from hydraulis.text.values import format_count

CPU = torch.device("cpu")
# torch 2.11 and later read the first name, and the second as its old name.
_ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
# Each micro-batch has a different size; without this setting freed memory is too fragmented for reuse.
_ALLOCATOR_SETTINGS = "expandable_segments:True"
# cuBLAS sums in a fixed order only with a workspace of a fixed size (NVIDIA's documentation of
# reproducibility).
_CUBLAS_VARIABLE, _CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
# CUDA spreads streams over queues from the host to the device, 8 by default; waiting work blocks all later
# work in its queue (CUDA programming guide, environment variables). Each group of a stage has a stream, and
# no such stream may wait for a gradient exchange. CUDA reads the variable when it starts, and
# torch.cuda.is_available starts it.
_QUEUES_VARIABLE, _MOST_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS", "32"
# By default a kernel is loaded at its first launch, which can make the host wait until the device is idle
# (CUDA programming guide, lazy loading): in the middle of a step, when a micro-batch's size needs a new
# kernel. CUDA reads the variable when it starts.
_LOADING_VARIABLE, _LOADING = "CUDA_MODULE_LOADING", "EAGER"


def choose_device(kind: DeviceKind) -> torch.device:
    """Return the device of this rank: the CPU, or the CUDA device with the rank's number in the node.

    With HYDRAULIS_SHARE_DEVICES=1 ranks take the devices in turn, if there are more ranks than devices.

    CUDA starts with the maximum number of queues and loads all kernels, unless the environment sets
    otherwise. This call must therefore precede every other use of CUDA.

    Args:
        kind: Kind of device in the configuration.

    Raises:
        InvalidInputError: The node has no CUDA device and one was requested, or fewer devices than ranks
            (code `device_missing`); on all ranks of the node.
    """
    if kind == "cpu":
        return CPU
    os.environ.setdefault(_QUEUES_VARIABLE, _MOST_QUEUES)
    os.environ.setdefault(_LOADING_VARIABLE, _LOADING)
    if kind == "auto" and not torch.cuda.is_available():
        return CPU
    if not torch.cuda.is_available():
        message = (
            f"train.device = '{kind}' and torch {torch.__version__} finds no CUDA device: install a build of "
            "torch for CUDA and its driver, or set train.device = 'cpu'"
        )
        raise InvalidInputError(message, code="device_missing")
    ranks, devices = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    if ranks <= devices:
        return torch.device("cuda", rank)
    if not sharing_requested():
        message = (
            f"train.device = '{kind}' and {ranks} ranks run on this node, {_remedy(ranks, devices)}, or set "
            f"train.device = 'cpu'; for a test, whose times mean nothing, {SHARE_VARIABLE}=1 lets ranks "
            "share a device"
        )
        raise InvalidInputError(message, code="device_missing")
    set_nccl_up()
    return torch.device("cuda", rank % devices)


def _remedy(ranks: int, devices: int) -> str:
    """Say why a node's ranks have too few devices, and what to do."""
    if devices == 1:
        return (
            f"and this rank sees 1 CUDA device (LOCAL_WORLD_SIZE = {ranks}): on a node with more devices let "
            "each rank see all of them, without Slurm's --gpus-per-task, torchrun's --virtual-local-rank or "
            "a CUDA_VISIBLE_DEVICES of each rank; on a node with 1 device start 1 rank"
        )
    return f"which has {devices} CUDA devices, and each needs its own: start {devices} ranks"


def prepare_device(device: torch.device, *, deterministic: bool = False) -> None:
    """Select the process's device, and configure its allocator before the first allocation.

    Products of bfloat16 matrices add up in float32. The allocator uses expandable segments, unless the
    environment sets other options.

    Args:
        device: This rank's device.
        deterministic: Whether repeated runs must give bitwise equal results.

    Raises:
        HydraulisError: The device has no memory left for a context (code `out_of_device_memory`).
    """
    if device.type != "cuda":
        return
    # By default cuBLAS may round the parts of a long sum to bfloat16 before it adds them.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    if deterministic:
        os.environ.setdefault(_CUBLAS_VARIABLE, _CUBLAS_WORKSPACE)
        torch.use_deterministic_algorithms(True)
        # By default torch would fill every allocation; this package reads no uninitialised memory.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if not any(variable in os.environ for variable in _ALLOCATOR_VARIABLES):
        _set_allocator(_ALLOCATOR_SETTINGS)
    _make_context(device)
    share = memory_share(device)
    if share is not None:
        torch.cuda.set_per_process_memory_fraction(share, device)


def _make_context(device: torch.device) -> None:
    try:
        torch.cuda.set_device(device)
    except RuntimeError as error:
        # As torch reports `cudaErrorMemoryAllocation`.
        if "out of memory" not in str(error):
            raise
        message = (
            f"{device} has no memory left to start on: other processes hold it (nvidia-smi lists them); end "
            "them, or choose other devices by CUDA_VISIBLE_DEVICES"
        )
        raise HydraulisError(message, code="out_of_device_memory") from error


def backend_of(device: torch.device, num_ranks: int, *, has_host_groups: bool = False) -> str:
    """Return the backends of WORLD: gloo for decisions and messages in host memory, NCCL for device tensors.

    A single rank sends nothing and uses only gloo, since an NCCL communicator takes 512 MiB.

    Args:
        device: Device of the rank.
        num_ranks: Number of ranks.
        has_host_groups: Whether messages in host memory have groups of their own (see `host`). WORLD then
            needs no gloo for CUDA ranks, whose number of connections would grow with all ranks.
    """
    if device.type != "cuda" or num_ranks == 1:
        return "gloo"
    return "cuda:nccl" if has_host_groups else "cpu:gloo,cuda:nccl"


def tensor_backend_of(device: torch.device) -> str:
    """Return the backend of groups whose ranks exchange only device tensors."""
    return "nccl" if device.type == "cuda" else "gloo"


def dtype_note(dtype: torch.dtype) -> str:
    """Return a warning about a type of parameters and activations that is slow on CUDA; '' for another."""
    if dtype != torch.float32:
        return ""
    return (
        "train.dtype = 'float32' leaves the tensor cores of a CUDA device unused, and flash attention takes "
        "no float32: set train.dtype = 'bfloat16'"
    )


def shared_cores(ranks: int) -> str:
    """Describe CPU ranks of this machine that share cores; empty if each has a core of its own."""
    cores = len(os.sched_getaffinity(0))
    return f"{ranks} ranks share {format_count(cores, 'core')}" if ranks > cores else ""


def device_name(device: torch.device) -> str:
    """Return the name of a rank's device, as in profiles; it states how many ranks share the device."""
    if device.type == "cuda":
        ranks = ranks_per_device(device)
        shared = f", shared by {ranks} ranks" if ranks > 1 else ""
        return f"{torch.cuda.get_device_name(device)}{shared}"
    return f"{os.uname().machine} CPU"


def _set_allocator(settings: str) -> None:
    """Configure the caching allocator by either of the names that torch versions have for the setter."""
    setter = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if setter is None:
        setter = torch.cuda.memory._set_allocator_settings
    setter(settings)
