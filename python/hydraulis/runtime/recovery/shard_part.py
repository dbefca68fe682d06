"""The trained or the frozen part of any rank's optimizer shard, as a layout describes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from hydraulis._core import ShardSlice
from hydraulis.runtime.checkpoint.shard import tensor_name
from hydraulis.runtime.state.optimizer_shard import FROZEN, MASTER, OptimizerShard, elements_of


@dataclass(frozen=True, slots=True)
class ShardPart:
    """The trained or the frozen part of one rank's optimizer shard.

    Attributes:
        names: Names of the model's parameters, by index.
        slices: Slices of the part.
        buffers: Names of the part's buffers; frozen parameters have no moments.
        first: Offset of the part's first element in the order of the shard.
        elements: Elements of each buffer.
    """

    names: Sequence[str]
    slices: Sequence[ShardSlice]
    buffers: Sequence[str]
    first: int
    elements: int

    @classmethod
    def of(cls, shard: OptimizerShard, rank: int, *, trained: bool) -> Self:
        """Look up a part in the layout of this rank's shard.

        Args:
            shard: This rank's optimizer shard.
            rank: Rank that owns the part.
            trained: Whether the part is the trained or the frozen one.
        """
        parameters = shard.parameters
        num_trained, num_frozen = shard.layout.shard_elements(rank)
        slices = shard.layout.slices(rank)
        return cls(
            names=parameters.names,
            slices=[piece for piece in slices if parameters.trained[piece.parameter] == trained],
            buffers=[MASTER, *shard.optimizer.moments] if trained else [FROZEN],
            first=0 if trained else num_trained,
            elements=num_trained if trained else num_frozen,
        )

    def tensors(self, flats: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """View the slices of flat buffers as tensors, by their names in a shard of a checkpoint."""
        return {
            tensor_name(buffer, self.names[piece.parameter]): flats[buffer][elements_of(piece, self.first)]
            for buffer in self.buffers
            for piece in self.slices
        }


def own_buffers(shard: OptimizerShard, *, trained: bool) -> Mapping[str, Tensor]:
    """Return the flat buffers of a part of this rank's shard, by their names in a checkpoint."""
    return {MASTER: shard.master, **shard.optimizer.moments} if trained else {FROZEN: shard.frozen}
