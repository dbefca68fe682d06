"""One rank's shard of a checkpoint: its tensors, their check and file, and the intervals of each rank."""

from collections.abc import Callable, Mapping
from operator import itemgetter
from pathlib import Path

import safetensors.torch
import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor

from hydraulis.errors import HydraulisError
from hydraulis.files import file_digest, replace_file
from hydraulis.runtime.checkpoint.manifest import Interval, ParameterRecord, ShardRecord
from hydraulis.runtime.ranks.streams import SideStream
from hydraulis.runtime.records.run_directory import unwritten
from hydraulis.runtime.state.optimizer_shard import HostCopy, OptimizerShard, elements_of


def shard_name(rank: int, world_size: int) -> str:
    """Return the file name of a rank's shard."""
    return f"state-{rank:05d}-of-{world_size:05d}.safetensors"


def tensor_name(buffer: str, parameter: str) -> str:
    """Return the name in a shard of a rank's interval of a parameter in one buffer of the optimizer shard."""
    return f"{buffer}/{parameter}"


class Snapshot:
    """A copy of this rank's optimizer shard in host memory (see `HostCopy`).

    Args:
        shard: This rank's optimizer shard.
        stream: Side stream of the copy.
    """

    def __init__(self, shard: OptimizerShard, stream: SideStream) -> None:
        self._shard = shard
        self._copy = HostCopy(shard, {kind: one.flat for kind, one in shard.buffers().items()}, stream)

    def tensors(self) -> Mapping[str, Tensor]:
        """Wait for the copy, and return its tensors by their names in the shard; callable from any thread."""
        flats, names = self._copy.flats(), self._shard.parameters.names
        return {
            tensor_name(kind, names[piece.parameter]): flats[kind][elements_of(piece, buffer.first)]
            for kind, buffer in self._shard.buffers().items()
            for piece in buffer.slices
        }


def parameter_records(shard: OptimizerShard) -> tuple[ParameterRecord, ...]:
    """Return the intervals of each parameter by rank, computed from the layout without communication."""
    parameters = shard.parameters
    intervals: dict[str, list[Interval]] = {name: [] for name in parameters.names}
    for rank in range(dist.get_world_size()):
        for piece in shard.layout.slices(rank):
            intervals[parameters.names[piece.parameter]].append((rank, piece.start, piece.end))
    return tuple(
        ParameterRecord(
            name=name,
            shape=tuple(parameters.shapes[name]),
            trained=trained,
            # Optimizer shards alternate between nodes, so intervals do not ascend with the rank.
            intervals=tuple(sorted(intervals[name], key=itemgetter(1))),
        )
        for name, trained in zip(parameters.names, parameters.trained, strict=True)
    )


def check_sound(tensors: Mapping[str, Tensor], step: int, rank: int) -> None:
    """Check that all numbers of a rank's shard are finite.

    A shard with another number could not be resumed, and would take the place of the last sound one.

    Args:
        tensors: Tensors in host memory, by their names in the shard.
        step: Number of completed iterations.
        rank: Rank that owns the shard, for the message.

    Raises:
        HydraulisError: A number is infinite or no number (code `state_not_finite`).
    """
    for name, tensor in tensors.items():
        # Smallest and largest element are NaN if any is, and need no further memory.
        if tensor.numel() and not all(map(torch.isfinite, torch.aminmax(tensor))):
            message = (
                f"{name} has a number that is not finite on rank {rank} after step {step}: this checkpoint "
                "is not written, and earlier ones are kept; resume from one with a lower "
                "optimizer.learning_rate"
            )
            raise HydraulisError(message, code="state_not_finite")


def write_shard(file: Path, snapshot: Snapshot) -> ShardRecord:
    """Wait for the snapshot, write it atomically as a shard, and return the file's size and digest.

    Raises:
        HydraulisError: The file cannot be written (code `file_unwritable`).
        OSError: The written file cannot be read.
    """
    write_durably(file, lambda path: write_tensors(path, snapshot.tensors()))
    return ShardRecord(file=file.name, bytes=file.stat().st_size, digest=file_digest(file))


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors as safetensors, with the permissions of any new file in the folder.

    safetensors itself writes a temporary file that only its owner may read, and renames it to the path.

    Args:
        path: Path of the file; an existing file is replaced.
        tensors: Tensors by name.
        metadata: Metadata of the file.

    Raises:
        OSError: The file cannot be written.
        SafetensorError: The file cannot be written.
    """
    path.touch()
    # The kernel applies the umask and the folder's defaults; reading the umask would require changing it.
    mode = path.stat().st_mode
    safetensors.torch.save_file(dict(tensors), path, None if metadata is None else dict(metadata))
    path.chmod(mode)


def write_durably(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under a temporary name, flush it to the disk, and rename it to `path`.

    Args:
        path: Final path of the file.
        write: Function that writes the file's content to the path passed to it.

    Raises:
        HydraulisError: The file cannot be written (code `file_unwritable`).
    """
    try:
        with replace_file(path, durable=True) as unfinished:
            write(unfinished)
    # safetensors raises its own exception for a full disk.
    except (OSError, SafetensorError) as error:
        raise unwritten(path, error) from error
