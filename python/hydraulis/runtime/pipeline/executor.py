"""Interprets an instruction list: the same list that the simulator ran to predict the iteration.

Legend: t tokens of this rank, H hidden.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis._core import Backward, Exchange, Forward
from hydraulis.data.collate import PackedMicroBatch
from hydraulis.runtime.pipeline.stage import Stage
from hydraulis.runtime.pipeline.timers import IterationClock

if TYPE_CHECKING:
    from hydraulis.runtime.memory.saved_activations import KeptActivations


@dataclass(slots=True, eq=False)
class Execution:
    """What came of a list.

    Attributes:
        losses: this rank's share of the batch's mean loss, of each micro-batch; none but on a last stage.
    """

    losses: list[Tensor] = field(default_factory=list)

    def loss(self) -> float:
        """Add the shares up. On CUDA it waits for the device, hence once, when all work is on its way."""
        return sum((loss.item() for loss in self.losses), 0.0)


@dataclass(frozen=True, slots=True)
class Gauges:
    """What is measured while a list runs.

    Attributes:
        clock: takes the times of forwards and backwards.
        kept: counts what micro-batches keep in between; None to leave that out.
    """

    clock: IterationClock
    kept: "KeptActivations | None"


def execute(
    instructions: Sequence[Forward | Backward | Exchange],
    stage: Stage,
    micro_batches: Sequence[PackedMicroBatch | None],
    denominator: int,
    before_backward: Callable[[], None],
    gauges: Gauges,
) -> Execution:
    """Run a rank's instruction list; gradients accumulate in the stage's buffers.

    Of a micro-batch without sequences nothing is computed or sent, as both neighbours know from the plan. Its
    place in the list keeps those around it apart in memory.

    Args:
        instructions: of this rank under the plan.
        stage: of this rank's position, its parameters in place.
        micro_batches: of this rank's replica, in the plan's order; None for one without sequences.
        denominator: target tokens of the whole global batch.
        before_backward: called once, before the first backward: from then on gradients are added up.
        gauges: told each forward and backward, in running order.
    """
    run = _Run(stage, micro_batches, denominator, before_backward, gauges.kept)
    for instruction in instructions:
        match instruction:
            case Forward(micro_batch):
                with gauges.clock.computing():
                    run.forward(micro_batch)
            case Backward(micro_batch):
                with gauges.clock.computing():
                    run.backward(micro_batch)
            case Exchange(peer, next=is_next, send=send, receive=receive):
                run.exchange(peer, send, receive, towards_next=is_next)
    run.drain()
    return run.result


class _Run:
    """The tensors in flight while one list runs."""

    def __init__(
        self,
        stage: Stage,
        micro_batches: Sequence[PackedMicroBatch | None],
        denominator: int,
        before_backward: Callable[[], None],
        kept: "KeptActivations | None",
    ) -> None:
        self._kept = kept
        self.result = Execution()
        self._stage = stage
        self._micro_batches = micro_batches
        self._denominator = denominator
        self._before_backward = before_backward
        self._has_gone_back = False
        self._input: dict[int, Tensor] = {}
        self._output: dict[int, Tensor | None] = {}
        self._output_gradient: dict[int, Tensor] = {}
        self._input_gradient: dict[int, Tensor] = {}
        # A send is done when its partner has received: its tensor must live until then.
        self._parked: list[tuple[int, dist.Work, Tensor]] = []

    def forward(self, micro_batch: int) -> None:
        packed = self._micro_batches[micro_batch]
        if packed is None:
            return
        input_tH = self._input.get(micro_batch)
        with self._kept.forward(micro_batch, input_tH) if self._kept else nullcontext():
            output = self._stage.forward(input_tH, packed, self._denominator)
        if self._stage.is_last:
            self.result.losses.append(output.detach())
        self._output[micro_batch] = output

    def backward(self, micro_batch: int) -> None:
        if not self._has_gone_back:
            self._has_gone_back = True
            self._before_backward()
        if self._micro_batches[micro_batch] is None:
            return
        output = self._output.pop(micro_batch)
        gradient = self._output_gradient.pop(micro_batch, None)
        if output is None:
            return
        # Of a loss the gradient is 1, which backward() takes for granted.
        torch.autograd.backward(output, gradient)
        input_tH = self._input.pop(micro_batch, None)
        if input_tH is not None and input_tH.grad is not None:
            self._input_gradient[micro_batch] = input_tH.grad
        if self._kept:
            self._kept.release(micro_batch)

    def exchange(self, peer: int, send: int | None, receive: int | None, *, towards_next: bool) -> None:
        """Trade with a neighbouring stage: activations go to the next one, gradients to the previous."""
        send, receive = self._travelling(send), self._travelling(receive)
        if send is None and receive is None:
            return
        operations = []
        if receive is not None:
            arriving_tH = self._empty(receive)
            operations.append(dist.P2POp(dist.irecv, arriving_tH, peer))
        if send is not None:
            leaving_tH = self._passed_on(send) if towards_next else self._input_gradient.pop(send)
            operations.append(dist.P2POp(dist.isend, leaving_tH, peer))
        # One work for each operation on gloo, a single one for the batch on NCCL.
        works = dist.batch_isend_irecv(operations)
        if receive is not None:
            works[0].wait()
            self._keep(receive, arriving_tH, towards_next=towards_next)
            # The peer received everything before it sent this: else v micro-batches would pile up here.
            self._release(peer)
        if send is not None:
            self._parked.append((peer, works[-1], leaving_tH))

    def _passed_on(self, micro_batch: int) -> Tensor:
        """Give what goes to the next stage; it stays here if a backward will begin from it."""
        output = self._output[micro_batch]
        assert output is not None, "each is passed on once"
        if not output.requires_grad:
            # A first stage whose parameters are all frozen has no backward.
            self._output[micro_batch] = None
            if self._kept:
                self._kept.release(micro_batch)
        return output.detach()

    def drain(self) -> None:
        for peer in {peer for peer, _, _ in self._parked}:
            self._release(peer)

    def _release(self, peer: int) -> None:
        for _, work, _ in (parked for parked in self._parked if parked[0] == peer):
            work.wait()
        self._parked = [parked for parked in self._parked if parked[0] != peer]

    def _travelling(self, micro_batch: int | None) -> int | None:
        """Give the micro-batch unless it has no sequences."""
        return None if micro_batch is None or self._micro_batches[micro_batch] is None else micro_batch

    def _empty(self, micro_batch: int) -> Tensor:
        packed = self._micro_batches[micro_batch]
        assert packed is not None, "a micro-batch without sequences does not travel"
        shape = self._stage.hidden_shape(packed)
        return torch.empty(shape, dtype=self._stage.dtype, device=self._stage.device)

    def _keep(self, micro_batch: int, arrived_tH: Tensor, *, towards_next: bool) -> None:
        if towards_next:
            self._output_gradient[micro_batch] = arrived_tH
        else:
            self._input[micro_batch] = arrived_tH.requires_grad_()
