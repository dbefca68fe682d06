"""One rank's part of a checkpoint: its tensors, their names, and who holds what."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import safetensors.torch
import torch.distributed as dist
from torch import Tensor

from hydraulis.runtime.checkpoint.durable import write_durably
from hydraulis.runtime.checkpoint.manifest import Interval, ParameterRecord
from hydraulis.runtime.home import HomeShare


def shard_name(rank: int, world_size: int) -> str:
    """Name the file of a rank."""
    return f"state-{rank:05d}-of-{world_size:05d}.safetensors"


def tensor_name(buffer: str, parameter: str) -> str:
    """Name the tensor of a shard that holds a rank's interval of a parameter in one of the home buffers."""
    return f"{buffer}/{parameter}"


def snapshot(shares: Sequence[HomeShare]) -> dict[str, Tensor]:
    """Copy the state of this rank, by the names of the tensors in its shard."""
    tensors = {}
    for share in shares:
        for buffer, flat in share.buffers().items():
            copy = flat.detach().to("cpu", copy=True)
            for held in share.slices:
                name = tensor_name(buffer, share.parameters.names[held.parameter])
                tensors[name] = copy[held.offset : held.offset + held.end - held.start]
    return tensors


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
                intervals=tuple(of_parameter),
            )
            for name, of_parameter in intervals.items()
        ]
    return tuple(records)


def write_shard(file: Path, tensors: Mapping[str, Tensor]) -> int:
    """Write a shard, whole or not at all; give its bytes.

    Raises:
        HydraulisError: it cannot be written (code `checkpoint_write`).
    """
    write_durably(file, lambda path: safetensors.torch.save_file(dict(tensors), path))
    return file.stat().st_size
