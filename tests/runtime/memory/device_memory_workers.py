"""Worker of the tests of device memory: ranks agree on the least one."""

import dataclasses

import torch.distributed as dist

from hydraulis.config.run import RunConfig
from hydraulis.runtime.memory.device_memory import with_least_memory


def least_memory(config: RunConfig, of_devices: list[int | None]) -> int | None:
    """Return the memory on which this rank agrees with the others.

    Args:
        config: Configuration that states the memory of a rank.
        of_devices: Memory of each rank's device in MiB; None for a rank that takes the stated one.
    """
    own = of_devices[dist.get_rank()]
    if own is not None:
        config = dataclasses.replace(config, planner=dataclasses.replace(config.planner, memory_mib=own))
    return with_least_memory(config, is_of_device=own is not None).planner.memory_mib
