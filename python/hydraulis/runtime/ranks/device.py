"""The device of a rank: chosen once from the configuration and from what torchrun says, before all else."""

import os

import torch

from hydraulis.config.kinds import DeviceKind
from hydraulis.errors import InvalidInputError

CPU = torch.device("cpu")
# torch 2.11 and later read the first, and the second as its old name.
_ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
# Micro-batches have a new size each, and without it freed memory stays in pieces that fit none of them.
_ALLOCATOR_SETTINGS = "expandable_segments:True"
# cuBLAS adds up in a fixed order only with a workspace of a fixed size (NVIDIA's documentation of
# reproducibility).
_CUBLAS_VARIABLE, _CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
# Streams are spread over the queues from the host to the device, 8 of them unless this says more, and what
# waits in a queue holds up what other streams put behind it (CUDA programming guide, environment variables).
# Each group of a stage has a stream, and none of them may wait for a trade of gradients. It counts if
# it is there when CUDA starts, and to ask whether there is a device starts it (torch.cuda.is_available).
_QUEUES_VARIABLE, _MOST_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS", "32"


def choose_device(kind: DeviceKind) -> torch.device:
    """Give the device of this rank: the CPU, or the CUDA device of its number in the node.

    CUDA is started with as many queues as a device can have, unless the environment says something else of
    them. So this comes before anything else that asks something of CUDA.

    Args:
        kind: as the configuration has it.

    Raises:
        InvalidInputError: The node has no CUDA device and one was requested, or fewer devices than ranks
            (code `device_missing`); on all ranks of the node.
    """
    if kind == "cpu":
        return CPU
    os.environ.setdefault(_QUEUES_VARIABLE, _MOST_QUEUES)
    if kind == "auto" and not torch.cuda.is_available():
        return CPU
    if not torch.cuda.is_available():
        message = (
            f"train.device = '{kind}' and torch {torch.__version__} finds no CUDA device: install a build of "
            "torch for CUDA and its driver, or set train.device = 'cpu'"
        )
        raise InvalidInputError(message, code="device_missing")
    ranks, devices = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
    if ranks > devices:
        message = (
            f"train.device = '{kind}' and {ranks} ranks run on this node, which has {devices} CUDA devices, "
            f"and each needs its own: start --nproc-per-node {devices}, or set train.device = 'cpu'"
        )
        raise InvalidInputError(message, code="device_missing")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def prepare_device(device: torch.device, *, deterministic: bool = False) -> None:
    """Make a device the process's own, before anything is put on it.

    The allocator gets expandable segments, unless the environment says something else of them.

    Args:
        device: of this rank, chosen.
        deterministic: whether results must not differ from run to run by rounding.
    """
    if device.type != "cuda":
        return
    if deterministic:
        os.environ.setdefault(_CUBLAS_VARIABLE, _CUBLAS_WORKSPACE)
        torch.use_deterministic_algorithms(True)
        # Torch would fill whatever is allocated, and nothing here reads what it has not written.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if not any(variable in os.environ for variable in _ALLOCATOR_VARIABLES):
        _set_allocator(_ALLOCATOR_SETTINGS)
    torch.cuda.set_device(device)


def backend_of(device: torch.device, num_ranks: int) -> str:
    """Name the backends of WORLD: what is decided and told travels over gloo, from memory of the host.

    A rank alone sends nothing, and on NCCL would pay 512 MiB for a communicator.
    """
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" and num_ranks > 1 else "gloo"


def tensor_backend_of(device: torch.device) -> str:
    """Name the backend of groups in which ranks exchange nothing but tensors of their devices."""
    return "nccl" if device.type == "cuda" else "gloo"


def device_name(device: torch.device) -> str:
    """Name what a rank computes on, as profiles have it."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"{os.uname().machine} CPU"


def _set_allocator(settings: str) -> None:
    """Configure the caching allocator, by the one name or the other that torch has for it."""
    setter = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if setter is None:
        setter = torch.cuda.memory._set_allocator_settings
    setter(settings)
