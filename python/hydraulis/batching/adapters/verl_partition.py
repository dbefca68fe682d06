"""The balanced partition behind verl's dynamic batches and its balance over data-parallel ranks.

    from hydraulis.batching.adapters import verl_partition
    verl_partition.install()

before the trainer starts, in the driver and in the workers. verl's own loop keeps the token cap.
"""

from collections.abc import Sequence

from hydraulis.batching.adapters.replacement import replace
from hydraulis.batching.adapters.schedules import partition


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
    """Replace verl's function in its module, and in the modules of verl that imported it by name.

    Returns:
        Names of these modules.

    Raises:
        HydraulisError: verl's module or a library that it needs, such as ray, is missing (code
            `extra_missing`).
    """
    return replace(
        "verl.utils.seqlen_balancing",
        "get_seqlen_balanced_partitions",
        balanced_partitions,
        needs="verl 0.9.1 and its requirements, such as ray",
    )
