"""Parameters that are not trained: no gradient, no optimizer state, and no transfer while nothing moves."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis._core import Plan, Position, Scheme, transfer
from hydraulis.runtime.redistribute.bucket_exchange import BucketExchange
from hydraulis.runtime.redistribute.parameter_gather import ParameterArrival
from hydraulis.runtime.redistribute.staging import Staging
from hydraulis.runtime.redistribute.staging_sizes import StagingSizes
from hydraulis.runtime.state.buffers import StrategyBuffers
from hydraulis.runtime.state.optimizer_shard import HomeShare


class FrozenParameters:
    """This rank's part in the frozen parameters of a model.

    They have a home like the others, so that any strategy finds them there, and buffers of their own, which
    stay filled from one iteration to the next as long as every rank stays at its position.

    Attributes:
        share: this rank's home share.
        buffers: of this rank in the current strategy.

    Args:
        share: of this rank.
        schemes: every scheme that a plan of the run may use.
        dtype: of the model.
        exchange: of all ranks, used for these parameters alone.
    """

    def __init__(
        self, share: HomeShare, schemes: Sequence[Scheme], dtype: torch.dtype, exchange: BucketExchange
    ) -> None:
        self.share = share
        device = share.master.device
        self.buffers = StrategyBuffers.for_schemes(share.parameters, schemes, dtype, device)
        self._room = Staging(self.buffers.parameter)
        self._arrival = ParameterArrival(exchange, share, self.buffers, lambda: self._room)
        self._positions: list[Position | None] | None = None

    def reserve(self, sizes: StagingSizes) -> None:
        """Have room at once for what any strategy sends, and to put in order what arrives in another one."""
        self._arrival.reserve(sizes)
        self._room.take(min(sizes.bucket, len(self.buffers.parameter)))

    @property
    def staging(self) -> list[Tensor]:
        """What sending takes beside the buffers."""
        return [self._arrival.overflow, self._room.room]

    def forget(self) -> None:
        """Take every rank's buffers for overwritten: the next plan fills them. Called by every rank."""
        self._positions = None

    def send(self, plan: Plan) -> None:
        """Fill every rank's buffers for a plan, unless they are. Collective."""
        positions = [plan.position(rank) for rank in range(dist.get_world_size())]
        if positions != self._positions:
            table = self.share.parameters.table
            self._arrival.start(transfer(table, self.share.layout, plan, dist.get_rank()))
            self._arrival.finish()
            self._positions = positions
