"""The state of a run, read from the memory of all nodes and exchanged between its ranks.

A rank reads each element of its shard from a copy on its own node, if there is one. Otherwise one of the
ranks that can read a copy sends it; senders take turns by the number of the receiving rank. So each element
is sent at most once, and never within a node.

On several nodes of several ranks, sender and receiver have the same place in their nodes, and exchange in a
group of their rail: WORLD may have no backend for host memory, and a group of all ranks would connect each of
them to all others. A group of all ranks is made only if some ranks of a node can read a copy that others of
it cannot.

Every rank computes from the manifest and the new layout which elements each rank needs, and which rank reads
them, so no rank asks another one. One uneven all-to-all for each buffer moves them in host memory.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis._core import OptimizerShards
from hydraulis.runtime.checkpoint.manifest import Manifest
from hydraulis.runtime.checkpoint.shard import tensor_name
from hydraulis.runtime.ranks import host
from hydraulis.runtime.ranks.every_rank import on_every_rank
from hydraulis.runtime.recovery.copy_file import open_copy
from hydraulis.runtime.recovery.memory_folder import CopyName, MemoryFolder
from hydraulis.runtime.state.optimizer_shard import FROZEN, MASTER
from hydraulis.runtime.state.parameters import ModelParameters


class _Piece(NamedTuple):
    """Elements of a parameter that one rank reads from one shard and another rank needs.

    Attributes:
        reader: Rank that reads the shard.
        shard: Shard of an earlier start.
        name: Name of the parameter.
        offset: First element, counted from the first one of the shard's interval.
        elements: Number of elements.
    """

    reader: int
    shard: int
    name: str
    offset: int
    elements: int


@dataclass(frozen=True, slots=True)
class ExchangedValues:
    """Values of this rank's optimizer shard.

    Attributes:
        pieces: Tensors by buffer, parameter, and first element.
        buffers: Buffer that has each parameter itself: that of the trained or of the frozen ones.
    """

    pieces: Mapping[tuple[str, str, int], Tensor]
    buffers: Mapping[str, str]

    def read(self, name: str, start: int, end: int, moment: str | None = None) -> Tensor:
        """Return the canonical elements from `start` to `end`, a slice of this rank's shard."""
        values = self.pieces[moment or self.buffers[name], name, start]
        assert len(values) == end - start, "only slices of this rank's shard were exchanged"
        return values


def exchange_values(
    folder: MemoryFolder,
    manifest: Manifest,
    sources: Mapping[int, Sequence[CopyName]],
    parameters: ModelParameters,
    layout: OptimizerShards,
) -> ExchangedValues:
    """Give every rank the values of its optimizer shard. Collective.

    Args:
        folder: Folder of the copies on this node.
        manifest: Manifest of the state.
        sources: Copies by the rank that may read them.
        parameters: The model's parameters.
        layout: Owner of each element among the ranks that there are now.

    Raises:
        HydraulisError: A copy was removed or damaged since it was found (code `checkpoint_missing`); on every
            rank.
    """
    exchange = _Exchange(manifest, sources, parameters, layout)
    found: dict[tuple[str, str, int], Tensor] = {}
    with ExitStack() as stack:
        files = on_every_rank(lambda: exchange.opened(folder, stack))
        exchange.connect(stack)
        for buffer in (MASTER, FROZEN, *manifest.moments):
            found |= exchange.exchange(buffer, files)
    return ExchangedValues(found, exchange.buffers)


class _Exchange:
    """The pieces that each rank needs, in the order in which they are sent.

    Attributes:
        buffers: Buffer that has each parameter itself.

    Args:
        manifest: Manifest of the state.
        sources: Copies by the rank that may read them.
        parameters: The model's parameters.
        layout: Owner of each element now.
    """

    def __init__(
        self,
        manifest: Manifest,
        sources: Mapping[int, Sequence[CopyName]],
        parameters: ModelParameters,
        layout: OptimizerShards,
    ) -> None:
        self._manifest, self._parameters, self._layout = manifest, parameters, layout
        self._own = sources.get(dist.get_rank(), ())
        self._records = {record.name: record for record in manifest.parameters}
        self.buffers = {record.name: MASTER if record.trained else FROZEN for record in manifest.parameters}
        self._readers: defaultdict[tuple[int, bool], list[int]] = defaultdict(list)
        for rank, copies in sources.items():
            for copy in copies:
                self._readers[copy.shard, copy.step is not None].append(rank)
        self._ranks_per_node = len(layout.node_of(0))
        self._is_along_rails = host.has_node_groups() and all(
            len({rank % self._ranks_per_node for rank in readers}) == self._ranks_per_node
            for readers in self._readers.values()
        )
        self._group: dist.ProcessGroup | None = None

    @property
    def _peers(self) -> range:
        """The ranks with which this rank exchanges, itself among them."""
        size = self._ranks_per_node if self._is_along_rails else 1
        return range(dist.get_rank() % size, dist.get_world_size(), size)

    def connect(self, stack: ExitStack) -> None:
        """Make the group of the exchange, which the stack ends, unless WORLD serves. Collective."""
        if host.has_node_groups():
            self._group = stack.enter_context(host.temporary_group(self._peers))

    def opened(self, folder: MemoryFolder, stack: ExitStack) -> Mapping[tuple[int, bool], Any]:
        """Open this rank's files, by shard and by whether they have the trained parameters."""
        return {
            (copy.shard, copy.step is not None): stack.enter_context(open_copy(folder.file(copy)))
            for copy in self._own
        }

    def exchange(
        self, buffer: str, files: Mapping[tuple[int, bool], Any]
    ) -> Mapping[tuple[str, str, int], Tensor]:
        """Exchange one buffer, and return this rank's tensors. Collective."""
        rank, peers = dist.get_rank(), self._peers
        manifest = self._manifest
        dtype: torch.dtype = getattr(torch, manifest.frozen_dtype if buffer == FROZEN else manifest.dtype)
        outgoing = [
            torch.cat([torch.empty(0, dtype=dtype), *self._read(buffer, receiver, files)])
            for receiver in peers
        ]
        needed = [piece for pieces in self._needed(rank, buffer).values() for piece in pieces]
        counts = [sum(piece.elements for piece in needed if piece.reader == reader) for reader in peers]
        received = torch.empty(sum(counts), dtype=dtype)
        sizes = [len(one) for one in outgoing]
        dist.all_to_all_single(received, torch.cat(outgoing), counts, sizes, group=self._group)
        return self._placed(buffer, dict(zip(peers, received.split(counts), strict=True)))

    def _needed(self, receiver: int, buffer: str) -> Mapping[tuple[str, int], Sequence[_Piece]]:
        """Return the pieces of each slice that a rank needs, by parameter and first element."""
        trained = self._parameters.trained
        needed: dict[tuple[str, int], Sequence[_Piece]] = {}
        for piece in self._layout.slices(receiver):
            name = self._parameters.names[piece.parameter]
            # A parameter may be frozen now that was trained before.
            has_moment = buffer in self._manifest.moments and trained[piece.parameter]
            if has_moment or buffer == self.buffers[name]:
                needed[name, piece.start] = list(self._cut(receiver, name, piece.start, piece.end))
        return needed

    def _cut(self, receiver: int, name: str, start: int, end: int) -> Iterator[_Piece]:
        """Yield the parts of an interval that different shards have, for the rank that needs them."""
        record = self._records[name]
        for shard, first, last in record.intervals:
            low, high = max(start, first), min(end, last)
            if low < high:
                reader = self._reader(receiver, self._readers[shard, record.trained])
                yield _Piece(reader, shard, name, low - first, high - low)

    def _reader(self, receiver: int, readers: Sequence[int]) -> int:
        """Return the one of these ranks that reads for a rank: itself, or the ranks of its rail in turn."""
        if receiver in readers:
            return receiver
        if self._is_along_rails:
            place = receiver % self._ranks_per_node
            readers = [rank for rank in readers if rank % self._ranks_per_node == place]
        return readers[receiver % len(readers)]

    def _read(self, buffer: str, receiver: int, files: Mapping[tuple[int, bool], Any]) -> Iterator[Tensor]:
        """Yield the values that this rank sends to another one."""
        for pieces in self._needed(receiver, buffer).values():
            for piece in pieces:
                if piece.reader == dist.get_rank():
                    file = files[piece.shard, self._records[piece.name].trained]
                    values = file.get_slice(tensor_name(buffer, piece.name))
                    yield values[piece.offset : piece.offset + piece.elements]

    def _placed(self, buffer: str, received: Mapping[int, Tensor]) -> Mapping[tuple[str, str, int], Tensor]:
        """Put the values received from each rank together, slice by slice; all send them in one order."""
        taken = dict.fromkeys(received, 0)
        placed: dict[tuple[str, str, int], Tensor] = {}
        for (name, start), pieces in self._needed(dist.get_rank(), buffer).items():
            values = []
            for piece in pieces:
                offset = taken[piece.reader]
                taken[piece.reader] += piece.elements
                values.append(received[piece.reader][offset : taken[piece.reader]])
            placed[buffer, name, start] = torch.cat(values)
        return placed
