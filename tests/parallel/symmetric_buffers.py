"""Symmetric buffers of CPU ranks: files that all map, with gloo's barrier; on CUDA devices the real ones."""

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from hydraulis.parallel import symmetric_memory
from hydraulis.parallel.symmetric_memory import SymmetricBuffer
from ranks import kind_of_ranks


def mapper(folder: Path, num_bytes: int) -> Callable[[dist.ProcessGroup], SymmetricBuffer]:
    """Return a function that maps the buffers of a group.

    Args:
        folder: Folder of the buffers, the same on every rank.
        num_bytes: Size of a buffer.
    """

    def map_files(group: dist.ProcessGroup) -> SymmetricBuffer:
        ranks = dist.get_process_group_ranks(group)
        files = [folder / f"{'-'.join(map(str, ranks))}.{rank}" for rank in ranks]
        files[group.rank()].write_bytes(bytes(num_bytes))
        dist.barrier(group=group)
        buffers = [
            torch.from_file(str(file), shared=True, size=num_bytes, dtype=torch.uint8) for file in files
        ]
        return SymmetricBuffer(buffers, group.rank(), lambda: dist.barrier(group=group))

    def map_devices(group: dist.ProcessGroup) -> SymmetricBuffer:
        symmetric_memory.BUFFER_BYTES = num_bytes
        return symmetric_memory.map_buffers(group)

    return map_devices if kind_of_ranks() == "cuda" else map_files
