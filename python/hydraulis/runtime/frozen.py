"""Parameters that are not trained: no gradient, no optimizer state, and no transfer while nothing moves."""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from hydraulis._core import Plan, Position, Scheme
from hydraulis.runtime.buffers import StrategyBuffers
from hydraulis.runtime.home import HomeShare
from hydraulis.runtime.transfers import Transfers


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
    """

    def __init__(self, share: HomeShare, schemes: Sequence[Scheme], dtype: torch.dtype) -> None:
        self.share = share
        self.buffers = StrategyBuffers.for_schemes(share.parameters, schemes, dtype)
        self._transfers = Transfers(share.parameters, share, self.buffers)
        self._positions: list[Position | None] | None = None

    def send(self, plan: Plan) -> None:
        """Fill every rank's buffers for a plan, unless they are. Collective."""
        positions = [plan.position(rank) for rank in range(dist.get_world_size())]
        if positions != self._positions:
            self._transfers.send_parameters(self._transfers.prepare(plan))
            self._positions = positions
