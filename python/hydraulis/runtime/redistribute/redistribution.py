"""Moves parameters from home to this iteration's layout, and gradients back, while it computes.

One uneven all-to-all per bucket each way, in one order on all ranks: parameters of all buckets from the first
to the last, then gradients from the last to the first. A rank sends only elements that the other one needs,
the volume of a reduce-scatter and an all-gather. Parameters travel in the model's dtype, gradients in that of
their sums.

What a stage computes waits for nothing but its own blocks: hooks on the modules of a block wait for its
parameters before its first forward, and hooks on the parameters see when the last backward has gone through
it. Trades of gradients start with the last forward at the earliest.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch.distributed as dist
from torch import Tensor, nn

from hydraulis._core import BucketTransfer, Plan, transfer
from hydraulis.runtime.pipeline.stage import Stage
from hydraulis.runtime.pipeline.timers import IterationClock
from hydraulis.runtime.redistribute.bucket_exchange import BucketExchange
from hydraulis.runtime.redistribute.gradient_reduction import GradientDeparture
from hydraulis.runtime.redistribute.parameter_gather import ParameterArrival
from hydraulis.runtime.redistribute.staging_sizes import StagingSizes
from hydraulis.runtime.state.buffers import StrategyBuffers
from hydraulis.runtime.state.optimizer_shard import HomeShare
from hydraulis.runtime.state.parameters import ModelParameters


class Transfers:
    """The transfers of one rank.

    Args:
        parameters: of the model.
        home: this rank's share.
        buffers: this rank's strategy buffers.
        exchange: of all ranks, used for these transfers alone.
        clock: told what is nothing but transfers.
    """

    def __init__(
        self,
        parameters: ModelParameters,
        home: HomeShare,
        buffers: StrategyBuffers,
        exchange: BucketExchange,
        clock: IterationClock,
    ) -> None:
        self._parameters = parameters
        self._home = home
        self.departure = GradientDeparture(exchange, home, buffers)
        self.arrival = ParameterArrival(exchange, home, buffers, lambda: self.departure.room)
        self._is_apart = exchange.is_apart
        self._clock = clock
        self._num_micro_batches = 0
        self._last_block = -1
        # Of each block, since transfers began.
        self._num_forwards: Counter[int] = Counter()

    def reserve(self, sizes: StagingSizes) -> None:
        """Have room at once for what any strategy stages, so that none allocates."""
        self.departure.reserve(sizes)
        self.arrival.reserve(sizes)

    @property
    def staging(self) -> list[Tensor]:
        """What transfers take beside the buffers."""
        return [*self.departure.staging, self.arrival.overflow]

    def prepare(self, plan: Plan) -> list[BucketTransfer]:
        """Work out what this rank trades under a plan."""
        return transfer(self._parameters.table, self._home.layout, plan, dist.get_rank())

    def attach(self, stage: Stage) -> None:
        """Let a stage wait for its parameters and report its gradients, whenever it computes from now on."""
        for number, module in stage.blocks():
            module.register_forward_pre_hook(partial(self._before_block, number))
        for number, parameter in self._by_bucket(stage):
            parameter.register_post_accumulate_grad_hook(partial(self._after_gradient, number))

    def begin(
        self, buckets: list[BucketTransfer], stage: Stage | None = None, num_micro_batches: int = 0
    ) -> None:
        """Start all parameters on their way, and expect the gradients of so many micro-batches. Collective.

        Args:
            buckets: as `prepare` gives them.
            stage: that this rank computes; None for a rank without work.
            num_micro_batches: of its replica, those without sequences left out.
        """
        with self._clock.transferring():
            self.arrival.start(buckets)
            numbers = () if stage is None else (number for number, _ in self._by_bucket(stage))
            accumulations = {number: count * num_micro_batches for number, count in Counter(numbers).items()}
            self.departure.begin(buckets, accumulations)
        self._num_micro_batches = num_micro_batches
        self._last_block = -1 if stage is None else max(number for number, _ in stage.blocks())
        self._num_forwards.clear()

    def fill(self, buckets: list[BucketTransfer]) -> None:
        """Bring all parameters, and expect no gradients. Collective."""
        self.arrival.start(buckets)
        self.arrival.finish()

    def finish_parameters(self) -> None:
        """Wait for every parameter of this iteration, and zero the gradients: before the first backward."""
        with self._clock.transferring():
            self.arrival.finish()

    def finish_gradients(self) -> None:
        """Wait until all gradients are at home. Collective; every parameter has been waited for."""
        with self._clock.transferring():
            self.departure.finish()

    def _by_bucket(self, stage: Stage) -> Iterator[tuple[int, nn.Parameter]]:
        table = self._parameters.table.parameters
        for index, parameter in stage.held.items():
            yield table[index].blocks[0], parameter

    def _before_block(self, number: int, _module: nn.Module, _args: object) -> None:
        if self.arrival.is_awaited(number):
            with self._clock.transferring():
                self.arrival.wait_for(number)
        self._num_forwards[number] += 1
        is_last = self._num_forwards[number] == self._num_micro_batches
        if is_last and not self.arrival.is_awaited(self._last_block):
            # Those that this rank has no gradients of. Not before: this rank's replica has some, whose last
            # backward is behind this forward, and on CUDA a trade that waits takes computation's place; and
            # parameters of blocks to come may be put in order in the room of gradients.
            with self._departing():
                self.departure.advance()

    def _after_gradient(self, number: int, _parameter: object) -> None:
        with self._departing():
            self.departure.accumulated(number)

    def _departing(self) -> AbstractContextManager[None]:
        """Time what departures hold this rank up for: beside computation, nothing."""
        return nullcontext() if self._is_apart else self._clock.transferring()
