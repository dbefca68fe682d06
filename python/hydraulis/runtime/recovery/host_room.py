"""The host memory that layers may offload to, next to copies of the state in the same memory."""

from collections.abc import Callable
from pathlib import Path

from hydraulis._core import Cluster, CostProfile
from hydraulis.config.run import RunConfig
from hydraulis.planner.profile_document import with_host_memory
from hydraulis.runtime.ranks import host
from hydraulis.runtime.recovery.footprint import Footprint
from hydraulis.runtime.recovery.node_memory import node_bytes
from hydraulis.text.values import free_mib

_MOUNTS = Path("/proc/mounts")
_IN_MEMORY = ("tmpfs", "ramfs", "hugetlbfs")
NODE_SHARE = 0.8
"""Share of a node's memory for layers that offload; processes, data and the page cache have the rest."""


def with_room_for_copies(
    profile: CostProfile, config: RunConfig, cluster: Cluster, note: Callable[[str], None]
) -> CostProfile:
    """Return the profile with the host memory that copies of the state leave to each rank. Collective.

    A profile has four fifths of a node's memory, or a stated number. The copies of
    `checkpoint.memory_folder` take a part of the same memory.

    Args:
        profile: Profile of a run.
        config: Configuration of the run.
        cluster: Cluster of the run.
        note: Receiver of the message that less memory is left than the profile has.
    """
    stated = profile.host_memory_bytes
    if stated is None or not config.checkpoint.memory_folder:
        return profile
    left = host.least(left_to_rank(config, cluster, node_bytes()))
    if left >= stated:
        return profile
    note(
        f"layers that offload have {free_mib(left)} MiB of host memory on each rank, not the "
        f"{free_mib(stated)} of the profile: the copies in checkpoint.memory_folder take the rest"
    )
    return with_host_memory(profile, max(1, left))


def left_to_rank(config: RunConfig, cluster: Cluster, of_node: int) -> int:
    """Return the bytes of host memory that copies of the state leave to each rank of a node, at least 0.

    Args:
        config: Configuration of a run with `checkpoint.memory_folder`.
        cluster: Cluster of the run.
        of_node: Bytes of the node's memory.
    """
    found = Footprint.of(config, cluster)
    taken = found.buffers + (found.files if is_in_memory(Path(config.checkpoint.memory_folder)) else 0)
    ranks = min(cluster.gpus, cluster.gpus_per_node)
    return max(0, (int(NODE_SHARE * of_node) - taken) // ranks)


def is_in_memory(folder: Path) -> bool:
    """Return whether a folder is in memory, not on a disk; True where the system does not say it."""
    try:
        lines = _MOUNTS.read_text().splitlines()
    except OSError:
        return True
    # Of several mounts at one place the last one counts; spaces are written as \040.
    kinds = {Path(line.split()[1].replace("\\040", " ")): line.split()[2] for line in lines}
    resolved = folder.resolve()
    return next(
        (kinds[place] in _IN_MEMORY for place in (resolved, *resolved.parents) if place in kinds), True
    )
