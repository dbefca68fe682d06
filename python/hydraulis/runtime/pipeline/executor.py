"""Runs a rank's instruction list: the list by which the simulator predicts the iteration.

Legend: t tokens of this rank, H hidden.
"""

from contextlib import nullcontext
from typing import TYPE_CHECKING, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis._core import Backward, Forward, SendReceive
from hydraulis.runtime.pipeline.rank_work import MicroBatches, RankWork
from hydraulis.runtime.pipeline.receive_block import (
    ReceiveBlock,
    SeparateTensors,
    list_messages,
    received_tensors,
)
from hydraulis.runtime.pipeline.stage import Stage
from hydraulis.runtime.pipeline.timers import StepTimers

if TYPE_CHECKING:
    from hydraulis.runtime.memory.saved_activations import SavedActivations


class Transfers(Protocol):
    """The transfers that run beside the pipeline, as `Redistribution` has them."""

    def finish_parameter_gather(self) -> None:
        """Wait for all parameters, and zero the gradients: once, before the first backward."""

    def launched(self, instruction: int) -> None:
        """Start the gradient reductions that may follow an instruction of this index in the rank's list."""


def run_pipeline(
    work: RankWork,
    transfers: Transfers,
    timers: StepTimers,
    saved: "SavedActivations | None" = None,
) -> list[Tensor]:
    """Run every forward, backward and exchange of a rank; gradients accumulate in the local shard.

    An empty micro-batch is neither computed nor sent, as both neighbours know from the plan.

    Args:
        work: This rank's part of the plan.
        transfers: The rank's transfers; they learn of the first backward and of each launched instruction.
        timers: Timers of each forward and backward.
        saved: Counter of the activations saved for backward; None to count none.

    Returns:
        The terms of the batch's mean loss on a last stage, one for each micro-batch; none on other ranks.
    """
    if work.stage is None:
        transfers.finish_parameter_gather()
        return []
    micro_batches = MicroBatches(work)
    received = received_tensors(work.stage, work.instructions, micro_batches.layouts)
    run = _Run(work.stage, micro_batches, work.denominator, saved, received)
    for index, instruction in enumerate(work.instructions):
        match instruction:
            case Forward(micro_batch):
                with timers.computing():
                    run.forward(micro_batch)
                micro_batches.read_next()
            case Backward(micro_batch):
                if not run.has_gone_back:
                    transfers.finish_parameter_gather()
                with timers.computing():
                    run.backward(micro_batch)
            case SendReceive(peer, next=is_next, send=send, receive=receive):
                run.exchange(peer, send, receive, towards_next=is_next)
        transfers.launched(index)
    run.drain()
    return run.losses


class _Run:
    """The tensors in flight while one list runs."""

    def __init__(
        self,
        stage: Stage,
        micro_batches: MicroBatches,
        denominator: int,
        saved: "SavedActivations | None",
        received: ReceiveBlock | SeparateTensors,
    ) -> None:
        self.losses: list[Tensor] = []
        self.has_gone_back = False
        self._stage = stage
        self._micro_batches = micro_batches
        self._denominator = denominator
        self._saved = saved
        self._received = received
        self._messages = list_messages(stage, micro_batches.layouts)
        self._input: dict[int, Tensor] = {}
        self._output: dict[int, Tensor | None] = {}
        self._output_gradient: dict[int, Tensor] = {}
        self._input_gradient: dict[int, Tensor] = {}
        # A send completes when its peer has received: its message must live until then.
        self._unsent: list[tuple[int, dist.Work, Tensor]] = []

    def forward(self, micro_batch: int) -> None:
        packed = self._micro_batches.take(micro_batch)
        if packed is None:
            return
        input_tH = self._input.get(micro_batch)
        with self._saved.forward(micro_batch, input_tH) if self._saved else nullcontext():
            output = self._stage.forward(input_tH, packed, self._denominator)
        if self._stage.is_last:
            self.losses.append(output.detach())
        self._output[micro_batch] = output

    def backward(self, micro_batch: int) -> None:
        self.has_gone_back = True
        if self._is_empty(micro_batch):
            return
        output = self._output.pop(micro_batch)
        gradient = self._output_gradient.pop(micro_batch, None)
        if output is None:
            return
        # A loss has the gradient 1, which backward() assumes.
        torch.autograd.backward(output, gradient)
        input_tH = self._input.pop(micro_batch, None)
        if input_tH is not None and input_tH.grad is not None:
            self._input_gradient[micro_batch] = input_tH.grad
        if self._saved:
            self._saved.release(micro_batch)

    def exchange(self, peer: int, send: int | None, receive: int | None, *, towards_next: bool) -> None:
        """Send to and receive from a neighbouring stage: activations go forward, gradients back."""
        send, receive = self._unless_empty(send), self._unless_empty(receive)
        if send is None and receive is None:
            return
        operations = []
        if receive is not None:
            received_tH = self._receive_buffer(receive, is_gradient=towards_next)
            arriving = self._messages.room(received_tH)
            operations.append(dist.P2POp(dist.irecv, arriving, peer))
        if send is not None:
            sent_tH = self._take_output(send) if towards_next else self._input_gradient.pop(send)
            leaving = self._messages.pack(sent_tH)
            operations.append(dist.P2POp(dist.isend, leaving, peer))
        # gloo returns one work for each operation, NCCL a single one for all.
        works = dist.batch_isend_irecv(operations)
        if receive is not None:
            works[0].wait()
            self._messages.unpack(arriving, received_tH)
            self._store(receive, received_tH, towards_next=towards_next)
            # The peer received all earlier sends before it sent this. Without their release the outputs of
            # all micro-batches would stay here.
            self._release(peer)
        if send is not None:
            self._unsent.append((peer, works[-1], leaving))

    def _take_output(self, micro_batch: int) -> Tensor:
        """Return a micro-batch's output for the next stage; keep it if a backward will start from it."""
        output = self._output[micro_batch]
        assert output is not None, "an output is sent once"
        if not output.requires_grad:
            # A first stage whose parameters are all frozen has no backward.
            self._output[micro_batch] = None
            if self._saved:
                self._saved.release(micro_batch)
        return output.detach()

    def drain(self) -> None:
        for peer in {peer for peer, _, _ in self._unsent}:
            self._release(peer)

    def _release(self, peer: int) -> None:
        for _, work, message in (one for one in self._unsent if one[0] == peer):
            work.wait()
            self._messages.sent(message)
        self._unsent = [one for one in self._unsent if one[0] != peer]

    def _unless_empty(self, micro_batch: int | None) -> int | None:
        return None if micro_batch is None or self._is_empty(micro_batch) else micro_batch

    def _is_empty(self, micro_batch: int) -> bool:
        return self._micro_batches.layouts[micro_batch] is None

    def _receive_buffer(self, micro_batch: int, *, is_gradient: bool) -> Tensor:
        layout = self._micro_batches.layouts[micro_batch]
        assert layout is not None, "an empty micro-batch is not sent"
        return self._received.tensor(micro_batch, self._stage.hidden_shape(layout), is_gradient=is_gradient)

    def _store(self, micro_batch: int, received_tH: Tensor, *, towards_next: bool) -> None:
        if towards_next:
            self._output_gradient[micro_batch] = received_tH
        else:
            self._input[micro_batch] = received_tH.requires_grad_()
