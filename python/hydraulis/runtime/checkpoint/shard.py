"""One rank's part of a checkpoint: its tensors, their names, and who holds what."""

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
    """Name the file of a rank."""
    return f"state-{rank:05d}-of-{world_size:05d}.safetensors"


def tensor_name(buffer: str, parameter: str) -> str:
    """Name the tensor of a shard that holds a rank's interval of a parameter in one of the home buffers."""
    return f"{buffer}/{parameter}"


class Snapshot:
    """A copy of the state of this rank on the host.

    On CUDA it is made beside computation, into pinned memory, which torch keeps for the next one; the home
    buffers are not stepped on before it is made. On the CPU it is there at once.

    Args:
        shares: the state.
        stream: on which it is made.
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
        """Wait until the copy is made, and give its tensors by their names in the shard; from any thread."""
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
    """Say which interval of which parameter is in the shard of which rank: known without asking them."""
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
                # Home's places alternate between nodes, so they do not ascend with the rank.
                intervals=tuple(sorted(of_parameter, key=itemgetter(1))),
            )
            for name, of_parameter in intervals.items()
        ]
    return tuple(records)


def write_shard(file: Path, snapshot: Snapshot) -> int:
    """Write a shard, whole or not at all, once the snapshot is made; give its bytes.

    Raises:
        HydraulisError: it cannot be written (code `file_unwritable`).
    """
    write_durably(file, lambda path: write_tensors(path, snapshot.tensors()))
    return file.stat().st_size
