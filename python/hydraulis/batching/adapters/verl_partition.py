"""The balanced partition behind verl's dynamic batches and its balance over data-parallel ranks.

    from hydraulis.batching.adapters import verl_partition
    verl_partition.install()

before the trainer starts, in the driver and in the workers. verl's own loop keeps the token cap.
"""

import importlib
from collections.abc import Sequence

from hydraulis.batching.adapters.schedules import partition

# verl's modules that hold the function under its name.
_MODULES = ("verl.utils.seqlen_balancing", "verl.trainer.ppo.ray_trainer")
_NAME = "get_seqlen_balanced_partitions"


def balanced_partitions(
    seqlen_list: Sequence[float],
    k_partitions: int,
    equal_size: bool,  # noqa: FBT001  verl passes it so
) -> list[list[int]]:
    """Partition items as verl's `get_seqlen_balanced_partitions` does, in milliseconds.

    Args:
        seqlen_list: Lengths or workloads of the items.
        k_partitions: Number of partitions.
        equal_size: Whether all partitions have the same number of items.
    """
    assert len(seqlen_list) >= k_partitions, f"{len(seqlen_list)} items for {k_partitions} partitions"
    if equal_size:
        assert len(seqlen_list) % k_partitions == 0, f"{len(seqlen_list)} % {k_partitions} != 0"
    return partition(seqlen_list, k_partitions, equal_size=equal_size)


def install() -> list[str]:
    """Replace verl's function in the modules that are there.

    Returns:
        Names of these modules.
    """
    found = []
    for name in _MODULES:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        setattr(module, _NAME, balanced_partitions)
        found.append(name)
    return found
