"""The memory of a CUDA device, as the driver and torch's allocator know it.

The driver counts all memory of the device. Torch's allocator has reserved a part, of which tensors use some.
The rest outside the allocator is the CUDA context with its kernels, and the communicators of NCCL.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import NamedTuple, Self

import torch
from torch import Tensor

from hydraulis.config.run import RunConfig
from hydraulis.runtime.memory.iteration_memory import IterationMemory
from hydraulis.runtime.ranks import host
from hydraulis.runtime.ranks.shared_devices import ranks_per_device
from hydraulis.text.values import MIB, format_count

# Contexts and communicators grow a little after the warm-up, for example by kernels that are compiled later.
_MARGIN = 1.03
# MiB by which the memory of a rank is rounded down.
_STEP = 256
# Share of the reserved memory without a tensor above which a run warns.
_FRAGMENTED = 0.05
# Question to each rank (see `Votes`).
FRAGMENTED = "fragmented"


class DeviceMemory(NamedTuple):
    """The memory of one rank's device in bytes.

    Attributes:
        total: Memory of the device.
        outside: Memory in use outside this process's allocator.
        reserved: Memory that the allocator has reserved.
        allocated: Memory of tensors.
        peak_reserved: Most reserved memory since the peaks were reset.
        peak_allocated: Most memory of tensors since then.
    """

    total: int
    outside: int
    reserved: int
    allocated: int
    peak_reserved: int
    peak_allocated: int

    @classmethod
    def read(cls, device: torch.device) -> Self:
        """Read the memory of a CUDA device."""
        free, total = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.memory_reserved(device)
        return cls(
            total=total,
            outside=max(0, total - free - reserved),
            reserved=reserved,
            allocated=torch.cuda.memory_allocated(device),
            peak_reserved=torch.cuda.max_memory_reserved(device),
            peak_allocated=torch.cuda.max_memory_allocated(device),
        )

    @property
    def fragmentation(self) -> int:
        """Reserved memory at the peak that no tensor used."""
        return max(0, self.peak_reserved - self.peak_allocated)

    def beyond(self, persistent: Iterable[Tensor]) -> int:
        """Return the bytes that a rank's persistent tensors and activations do not count.

        They are the memory outside the allocator with a margin of 3 %, workspaces of libraries, and
        fragmentation.

        Args:
            persistent: Persistent tensors of the rank, each with a storage of its own; no others exist but
                workspaces.
        """
        workspaces = max(0, self.allocated - sum(tensor.nbytes for tensor in persistent))
        return math.ceil(_MARGIN * self.outside) + workspaces + self.fragmentation


def outside_bytes(device: torch.device, communicators: int) -> int:
    """Return the bytes of a rank outside torch's allocator, which plans count; 0 on the CPU.

    The driver counts the ranks of a shared device together, so a rank's bytes there are those of its
    communicators.

    Args:
        device: Device of the rank.
        communicators: Bytes of the rank's communicators.
    """
    if device.type != "cuda":
        return 0
    return communicators if ranks_per_device(device) > 1 else DeviceMemory.read(device).outside


def with_device_memory(config: RunConfig, device: torch.device) -> RunConfig:
    """Return the configuration with the CUDA device's memory as `planner.memory_mib`, if that is absent.

    It is rounded down to 256 MiB, because devices of one kind can differ by a few. On the CPU it stays
    absent: the saved profile of the run has its own.

    Args:
        config: Configuration of the run.
        device: Device of this rank.
    """
    if config.planner.memory_mib is not None or device.type != "cuda":
        return config
    own = torch.cuda.get_device_properties(device).total_memory // ranks_per_device(device)
    return _with_memory(config, own // MIB // _STEP * _STEP)


def with_least_memory(config: RunConfig, *, is_of_device: bool) -> RunConfig:
    """Return the configuration with the least memory of all ranks whose own device states it. Collective.

    Devices of several kinds, or of one kind on both sides of a step of rounding, state different ones.

    Args:
        config: Configuration with `planner.memory_mib`.
        is_of_device: Whether `with_device_memory` has set it on this rank; otherwise it stays.
    """
    own = config.planner.memory_mib if is_of_device else None
    least = host.least(math.inf if own is None else float(own))
    return config if own is None else _with_memory(config, int(least))


def _with_memory(config: RunConfig, mib: int) -> RunConfig:
    return dataclasses.replace(config, planner=dataclasses.replace(config.planner, memory_mib=mib))


class FragmentationCheck:
    """Finds whether the allocator of a rank is fragmented.

    The allocator keeps the memory of the largest step, and of work before the first step, such as the
    measurement of costs. A step that needs less leaves memory without tensors, which is no fragmentation.

    Args:
        device: CUDA device of the rank.
        iterations: Measurement of the rank's iterations, which knows the most bytes of tensors so far.
    """

    def __init__(self, device: torch.device, iterations: IterationMemory) -> None:
        self._device = device
        self._iterations = iterations
        self._reserved_before = DeviceMemory.read(device).reserved

    def is_fragmented(self) -> bool:
        """Return whether over 5 % of the reserved memory is new since the start, and was never in use."""
        reserved = DeviceMemory.read(self._device).peak_reserved
        used = max(self._reserved_before, self._iterations.most_of_all())
        return reserved - used > _FRAGMENTED * reserved


def fragmentation_note(ranks: int) -> str:
    """Return the warning that the allocators of some ranks are fragmented."""
    return (
        f"over {_FRAGMENTED:.0%} of the memory that torch's allocator has reserved was never in use, on "
        f"{format_count(ranks, 'rank')}: plans do not count that memory; lower planner.memory_mib if a rank "
        "runs out of memory"
    )
