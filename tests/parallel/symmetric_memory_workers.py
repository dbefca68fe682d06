"""Functions that the ranks of test_symmetric_memory.py run."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hydraulis import Cluster
from hydraulis.parallel import collectives
from hydraulis.parallel import groups as groups_module
from hydraulis.parallel.collectives import all_gather_tokens, reduce_scatter_tokens
from hydraulis.parallel.groups import ProcessGroups
from hydraulis.parallel.symmetric_memory import SymmetricBuffer
from parallel.symmetric_buffers import mapper


def both_ways(tokens: Sequence[Tensor], folder: Path, num_bytes: int) -> list[tuple[Tensor, Tensor]]:
    """Gather and scatter tensors of all tokens, forward and backward, one after another through one buffer.

    Returns:
        Pairs of results through the buffer and by the plain path.
    """
    group = dist.group.WORLD
    assert group is not None
    buffer = mapper(folder, num_bytes)(group)
    pairs = []
    for whole_TH in tokens:
        for gathers in (True, False):
            through, plain = (_forward_backward(whole_TH, one, gathers=gathers) for one in (buffer, None))
            pairs += list(zip(through, plain, strict=True))
    return pairs


def _forward_backward(
    whole_TH: Tensor, buffer: SymmetricBuffer | None, *, gathers: bool
) -> tuple[Tensor, Tensor]:
    rank, group = dist.get_rank(), dist.group.WORLD
    own = whole_TH.chunk(dist.get_world_size())[rank] if gathers else whole_TH * (rank + 1)
    own = own.clone().requires_grad_()
    collective = all_gather_tokens if gathers else reduce_scatter_tokens
    # On CUDA the plain path is that of deterministic runs.
    with patch.object(collectives, "_is_native", lambda _: False):
        y = collective(own, group, buffer)
        (gradient,) = torch.autograd.grad(y, own, torch.sin(y.detach() * (rank + 2)))
    return y.detach(), gradient


class Access(NamedTuple):
    """An access to bytes of a buffer.

    Attributes:
        passed: Barriers that the accessing rank had passed.
        writes: Whether it writes.
        owner: Rank whose buffer it is.
        first: First byte.
        behind: Byte behind the last one.
    """

    passed: int
    writes: bool
    owner: int
    first: int
    behind: int


class _Accesses(TorchDispatchMode):
    """Lists the accesses of one rank to all buffers of its group."""

    def __init__(self, buffers: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own, through super()
        self.found: list[Access] = []
        self.passed = 0
        self._owners = {buffer.untyped_storage().data_ptr(): rank for rank, buffer in enumerate(buffers)}

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for argument, value in zip(func._schema.arguments, () if func.is_view else args, strict=False):
            if isinstance(value, Tensor) and value.untyped_storage().data_ptr() in self._owners:
                assert value.is_contiguous()
                first = int(value.storage_offset()) * value.itemsize
                writes = argument.alias_info is not None and argument.alias_info.is_write
                owner = self._owners[value.untyped_storage().data_ptr()]
                self.found.append(Access(self.passed, writes, owner, first, first + int(value.nbytes)))
        return func(*args, **(kwargs or {}))


def accesses(tokens: Sequence[Tensor], folder: Path, num_bytes: int, in_turn: bool) -> list[Access]:  # noqa: FBT001 - ranks take arguments by position
    """Gather and scatter tensors one after another; return this rank's accesses to buffers.

    Args:
        tokens: Tensors of all tokens.
        folder: Folder of the buffers.
        num_bytes: Size of a buffer.
        in_turn: Whether rounds use the halves in turn, or else the first one alone.
    """
    group = dist.group.WORLD
    assert group is not None
    buffer = mapper(folder, num_bytes)(group)
    barrier, halves = buffer._barrier, buffer._halves
    listed = _Accesses([first for first, _ in halves])
    if not in_turn:
        buffer._halves = [(first, first) for first, _ in halves]

    def pass_barrier() -> None:
        barrier()
        listed.passed += 1

    buffer._barrier = pass_barrier
    with listed:
        for whole_TH in tokens:
            buffer.all_gather(whole_TH.chunk(group.size())[group.rank()])
            buffer.reduce_scatter(whole_TH, lambda addends_WcH: addends_WcH.sum(0))
    return listed.found


def mapped_groups(degrees: Sequence[int], cluster: Cluster, folder: Path) -> list[tuple[int, ...]]:
    """Share the memory of nodes; return the ranks of each mapping of this rank, in order."""
    groups, mapped = ProcessGroups(timedelta(seconds=60)), []
    map_files = mapper(folder, 64)

    def map_noted(group: dist.ProcessGroup) -> SymmetricBuffer:
        mapped.append(tuple(dist.get_process_group_ranks(group)))
        return map_files(group)

    with patch.object(groups_module, "map_buffers", map_noted):
        groups.share_memory(degrees, cluster)
    for ranks in mapped:
        assert groups.buffer(ranks) is not None
    whole = range(cluster.gpus)
    assert tuple(whole) in mapped or groups.buffer(whole) is None
    return mapped
