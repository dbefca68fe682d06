"""One rank's shard of a checkpoint: its tensors, their names, and the intervals of each rank."""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis.runtime.checkpoint.durable import write_durably
from hydraulis.runtime.checkpoint.manifest import Interval, ParameterRecord
from hydraulis.runtime.checkpoint.tensor_file import write_tensors
from hydraulis.runtime.ranks.streams import Landmark, SideStream
from hydraulis.runtime.state.optimizer_shard import HomeShare


def shard_name(rank: int, world_size: int) -> str:
    """Return the file name of a rank's shard."""
    return f"state-{rank:05d}-of-{world_size:05d}.safetensors"


def tensor_name(buffer: str, parameter: str) -> str:
    """Return the name in a shard of a rank's interval of a parameter in one buffer of the optimizer shard."""
    return f"{buffer}/{parameter}"


class Snapshot:
    """A copy of this rank's optimizer shards in host memory.

    On CUDA the copy runs on a side stream into pinned memory, which torch reuses for the next snapshot; the
    optimizer step waits for it. On the CPU the copy is complete at once.

    Args:
        shares: This rank's optimizer shards.
        stream: Side stream of the copy.
    """

    def __init__(self, shares: Sequence[HomeShare], stream: SideStream) -> None:
        self._tensors: dict[str, Tensor] = {}
        with stream.beside():
            for share in shares:
                self._copy(share)
            self._made = Landmark(shares[0].master.device)
        for share in shares:
            share.read_until(self._made)

    def tensors(self) -> Mapping[str, Tensor]:
        """Wait for the copy, and return its tensors by their names in the shard; callable from any thread."""
        self._made.synchronize()
        return self._tensors

    def _copy(self, share: HomeShare) -> None:
        for buffer, flat in share.buffers().items():
            copy = torch.empty_like(flat, device="cpu", pin_memory=flat.is_cuda)
            copy.copy_(flat.detach(), non_blocking=True)
            for held in share.slices:
                name = tensor_name(buffer, share.parameters.names[held.parameter])
                self._tensors[name] = copy[held.offset : held.offset + held.end - held.start]


def parameter_records(shares: Sequence[HomeShare]) -> tuple[ParameterRecord, ...]:
    """Return the intervals of each parameter by rank, computed from the layout without communication."""
    records = []
    for share in shares:
        intervals: dict[str, list[Interval]] = {name: [] for name in share.parameters.names}
        for rank in range(dist.get_world_size()):
            for held in share.layout.slices(share.parameters.table, rank):
                intervals[share.parameters.names[held.parameter]].append((rank, held.start, held.end))
        records += [
            ParameterRecord(
                name=name,
                shape=tuple(share.parameters.shapes[name]),
                trained=share.parameters.trained,
                # Optimizer shards alternate between nodes, so intervals do not ascend with the rank.
                intervals=tuple(sorted(of_parameter, key=itemgetter(1))),
            )
            for name, of_parameter in intervals.items()
        ]
    return tuple(records)


def write_shard(file: Path, snapshot: Snapshot) -> int:
    """Wait for the snapshot, write it atomically as a shard, and return the file's size in bytes.

    Raises:
        HydraulisError: The file cannot be written (code `file_unwritable`).
    """
    write_durably(file, lambda path: write_tensors(path, snapshot.tensors()))
    return file.stat().st_size
