"""The error of a rank whose device has no memory left, with the figures that say which setting to lower."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import torch

from hydraulis.errors import HydraulisError
from hydraulis.runtime.memory.device_memory import DeviceMemory
from hydraulis.runtime.ranks.liveness.check import is_full_device
from hydraulis.runtime.worker import Worker
from hydraulis.text.values import MIB, mib, needed_mib

# The allocator's message has the size as text alone: `Tried to allocate 2.00 GiB.`
_REQUEST = re.compile(r"Tried to allocate ([0-9.]+) (bytes|KiB|MiB|GiB)")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": MIB, "GiB": 1 << 30}


def naming_out_of_memory(
    worker: Worker, rank: int, planned: Callable[[], int | None] = lambda: None
) -> AbstractContextManager[None]:
    """Raise the error of a full device (see `is_full_device`) as an error of this package.

    Args:
        worker: Worker of this rank.
        rank: Number of this rank.
        planned: Function that returns the bytes that the plan predicts for this rank; None if it has no plan.

    Raises:
        HydraulisError: The device has no memory left (code `out_of_device_memory`).
    """

    def describe(memory: DeviceMemory, requested: int) -> str:
        return describe_out_of_memory(
            f"rank {rank}",
            memory,
            requested,
            planned=planned(),
            resident=sum(tensor.nbytes for tensor in worker.persistent),
            communicators=worker.communicator_bytes,
        )

    return _naming(worker.device, describe)


def naming_full_device(device: torch.device, rank: int) -> AbstractContextManager[None]:
    """Raise the error of a full device while a worker is built as an error of this package.

    Args:
        device: Device of this rank.
        rank: Number of this rank.

    Raises:
        HydraulisError: The device has no memory left (code `out_of_device_memory`).
    """
    return _naming(device, partial(describe_full_device, f"rank {rank}"))


@contextmanager
def _naming(device: torch.device, describe: Callable[[DeviceMemory, int], str]) -> Iterator[None]:
    """Raise the error of a full device with a message from its memory and the bytes of the request."""
    try:
        yield
    except Exception as error:
        if not is_full_device(error):
            raise
        message = describe(DeviceMemory.read(device), requested_bytes(str(error)))
        raise HydraulisError(message, code="out_of_device_memory") from error


def describe_out_of_memory(
    name: str,
    memory: DeviceMemory,
    requested: int,
    *,
    planned: int | None,
    resident: int,
    communicators: int,
) -> str:
    """Return the message, with the number of MiB by which to lower the planned memory.

    Args:
        name: Name of the rank.
        memory: Memory of its device, after the failed request.
        requested: Bytes of the failed request; 0 if they are unknown.
        planned: Predicted bytes of the rank; None without a plan.
        resident: Bytes of its persistent tensors.
        communicators: Planned bytes of its communicators.
    """
    # As if the allocator could reuse none of its free memory for the request.
    lacking = max(requested, MIB, memory.outside + memory.reserved + requested - memory.total)
    least = f" by at least {needed_mib(lacking)}" if requested else ""
    plan = "" if planned is None else f"{mib(planned)} MiB were planned; "
    return (
        f"{name} ran out of device memory when it asked for {_requested(requested)}: {plan}tensors hold "
        f"{mib(memory.allocated)} MiB, of which {mib(resident)} MiB resident; {_outside_tensors(memory)}, "
        f"of which {mib(communicators)} MiB planned for communicators. Lower planner.memory_mib{least} and "
        "measure the cost profile again, or lower train.exchange_channels and train.stage_channels"
    )


def describe_full_device(name: str, memory: DeviceMemory, requested: int) -> str:
    """Return the message of a rank whose device does not hold its parameters and optimizer shard.

    Args:
        name: Name of the rank.
        memory: Memory of its device, after the failed request.
        requested: Bytes of the failed request; 0 if they are unknown.
    """
    return (
        f"{name} ran out of device memory when it asked for {_requested(requested)} for parameters, "
        f"gradients and optimizer state: tensors hold {mib(memory.allocated)} MiB; "
        f"{_outside_tensors(memory)}. "
        "No plan needs less: train on more ranks, or name only schemes with more tensor ranks or stages in "
        "planner.strategies or planner.schemes"
    )


def _outside_tensors(memory: DeviceMemory) -> str:
    return (
        f"the allocator has reserved {mib(memory.reserved)} MiB of {mib(memory.total)} MiB; context and "
        f"communicators take {mib(memory.outside)} MiB"
    )


def requested_bytes(message: str) -> int:
    """Return the bytes that an error of torch's allocator names; 0 if it names none."""
    found = _REQUEST.search(message)
    return 0 if found is None else round(float(found[1]) * _UNITS[found[2]])


def _requested(size: int) -> str:
    """Name the size of a request; torch's allocator alone tells it."""
    return f"{mib(size)} MiB" if size else "memory"
