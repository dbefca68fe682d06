"""The memory of a node, and the part that a container or a Slurm job may use by its control groups."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# cgroups(7): a line for each hierarchy, `number:controllers:path`; version 2 has no controllers.
_OWN = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")
# The file with the limit, and the folder of the hierarchy, by the controllers of a line.
_LIMITS = {"": ("memory.max", ""), "memory": ("memory.limit_in_bytes", "memory")}


def node_bytes() -> int:
    """Return the bytes of this node's memory that this process may use."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = memory_limit()
    return whole if limit is None else min(whole, limit)


def memory_limit() -> int | None:
    """Return the least limit of this process's groups, in bytes; None without one.

    Version 1 writes a number above any memory where there is no limit.
    """
    return min(_limits(), default=None)


def _limits() -> Iterator[int]:
    for name, folder in _folders():
        # A file has `max` without a limit; the group of the root has no file.
        with suppress(OSError, ValueError):
            yield int((folder / name).read_text())


def _folders() -> Iterator[tuple[str, Path]]:
    """Yield the groups of this process, and those that they are in, with the names of their limits."""
    try:
        lines = _OWN.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in _LIMITS:
            name, hierarchy = _LIMITS[controllers]
            top = _MOUNT / hierarchy
            # In a container the path may be that of its host; the group of the container is at the top.
            group = Path(path.lstrip("/"))
            yield from ((name, top / one) for one in (group, *group.parents))
