"""The check of the copies of the state in memory (`checkpoint.memory_folder`)."""

import os
import shutil
from pathlib import Path

from hydraulis._core import Cluster, CostProfile
from hydraulis.config.run import RunConfig
from hydraulis.errors import InvalidInputError
from hydraulis.files import is_folder
from hydraulis.preflight.finding import Status
from hydraulis.runtime.recovery.footprint import Footprint
from hydraulis.runtime.recovery.host_room import left_to_rank
from hydraulis.runtime.recovery.memory_folder import MemoryFolder
from hydraulis.runtime.recovery.node_memory import node_bytes
from hydraulis.runtime.recovery.run_start import named_starts
from hydraulis.text.values import free_mib, needed_mib


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
    if not is_folder(Path(base)) or not os.access(base, os.W_OK):
        message = f"checkpoint.memory_folder = '{base}' is no folder that can be written: set it to another"
        raise InvalidInputError(message, code="file_unwritable")
    free = shutil.disk_usage(base).free
    if found.files > free:
        there = _kept_runs(Path(base))
        if there:
            return "later", (
                f"the start decides: {free_mib(free)} MiB are free in {base} next to copies of "
                f"{' and '.join(map(str, there))}; a node's ranks need {needed_mib(found.files)} MiB, or "
                f"{needed_mib(found.first)} for new copies next to those of the step that the run continues "
                "from"
            )
        if MemoryFolder(Path(base), "").needed_bytes(found.first, found.files) <= free:
            return "later", (
                f"the start decides: {free_mib(free)} MiB are free in {base} next to copies of ended runs; "
                f"it replaces them, and a node's ranks need {needed_mib(found.files)} MiB"
            )
        message = (
            f"checkpoint.memory_folder = '{base}' has {free_mib(free)} MiB of room, and the copies of a "
            f"node's ranks take {needed_mib(found.files)}: make room, or set it to '' for no copies"
        )
        raise InvalidInputError(message, code="file_unwritable")
    twins = (
        f"{needed_mib(found.sent)} MiB to the next node in each step, for a twin of each shard there"
        if found.sent
        else "no twins, so a lost node loses its copies"
    )
    return "ok", (
        f"{needed_mib(found.files)} of {free_mib(free)} MiB free in {base} on each node, and up to "
        f"{needed_mib(found.buffers)} MiB of host memory for a copy and a checkpoint in progress; "
        f"{twins}{_offloading(config, cluster, profile)}"
    )


def _kept_runs(base: Path) -> list[Path]:
    """Return the runs that have ended and may continue from copies in a folder of this machine."""
    starts = MemoryFolder(base, "").abandoned_starts()
    return sorted({run for start, run in starts.items() if start in named_starts(run)})


def _offloading(config: RunConfig, cluster: Cluster, profile: CostProfile | None) -> str:
    """State the host memory that the copies leave to layers that offload; empty if that is the profile's."""
    stated = None if profile is None else profile.host_memory_bytes
    if stated is None:
        return ""
    left = left_to_rank(config, cluster, node_bytes())
    if left >= stated:
        return ""
    return (
        f"; on a machine like this one layers that offload have {free_mib(left)} MiB of host memory on each "
        f"rank next to them, not the {free_mib(stated)} of the profile"
    )
