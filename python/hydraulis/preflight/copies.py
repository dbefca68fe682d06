"""The check of the copies of the state in memory (`checkpoint.memory_folder`)."""

import os
import shutil
from pathlib import Path

from hydraulis._core import Cluster, CostProfile
from hydraulis.config.run import RunConfig
from hydraulis.errors import InvalidInputError
from hydraulis.preflight.finding import Status
from hydraulis.runtime.recovery.footprint import Footprint
from hydraulis.runtime.recovery.host_room import left_to_rank, node_bytes


def check_copies(
    config: RunConfig, cluster: Cluster, profile: CostProfile | None = None
) -> tuple[Status, str]:
    """State the host memory and the messages of the copies, and check that their folder has room here.

    Args:
        config: Configuration of the run.
        cluster: Cluster of the run.
        profile: Cost profile of the run; None if it is measured at the start.

    Raises:
        InvalidInputError: The folder is missing, cannot be written, or has no room (code `file_unwritable`).
    """
    base = config.checkpoint.memory_folder
    if not base:
        return "ok", "none; with checkpoint.memory_folder a loss of ranks costs one step"
    found = Footprint.of(config, cluster)
    if not Path(base).is_dir() or not os.access(base, os.W_OK):
        message = f"checkpoint.memory_folder = '{base}' is no folder that can be written: set it to another"
        raise InvalidInputError(message, code="file_unwritable")
    free = shutil.disk_usage(base).free
    if found.files > free:
        message = (
            f"checkpoint.memory_folder = '{base}' has {free >> 20:,} MiB of room, and the copies of a node's "
            f"ranks take {_mib(found.files)}: make room, or set it to '' for no copies"
        )
        raise InvalidInputError(message, code="file_unwritable")
    twins = (
        f"{_mib(found.sent)} MiB to the next node in each step, for a twin of each shard there"
        if found.sent
        else "no twins, so a lost node loses its copies"
    )
    return "ok", (
        f"{_mib(found.files)} of {free >> 20:,} MiB free in {base} on each node, and {_mib(found.buffers)} "
        f"MiB of host memory while a copy is made; {twins}{_offloading(config, cluster, profile)}"
    )


def _offloading(config: RunConfig, cluster: Cluster, profile: CostProfile | None) -> str:
    """State the host memory that the copies leave to layers that offload; empty if that is the profile's."""
    stated = None if profile is None else profile.host_memory_bytes
    if stated is None:
        return ""
    left = left_to_rank(config, cluster, node_bytes())
    if left >= stated:
        return ""
    return (
        f"; on a machine like this one layers that offload have {left >> 20:,} MiB of host memory on each "
        f"rank next to them, not the {stated >> 20:,} of the profile"
    )


def _mib(count: int) -> str:
    """Return a number of bytes in MiB, rounded up."""
    return f"{-(-count >> 20):,}"
