"""Runs the forward half of a rank's instruction list, for a loss without an update or for next tokens.

Legend: t tokens of this rank, H hidden.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis._core import Forward, SendReceive
from hydraulis.parallel.next_token import TokenChoice
from hydraulis.runtime.pipeline.messages import Messages
from hydraulis.runtime.pipeline.rank_work import MicroBatches, RankWork
from hydraulis.runtime.pipeline.receive_block import Instruction, list_messages, received_tensors


def run_forward(work: RankWork, choice: TokenChoice | None = None) -> list[Tensor]:
    """Run the forwards of a rank, and the exchanges of activations.

    A rank then waits for a later stage only until that stage has received its activations, so the lists
    finish as they do in training.

    Args:
        work: This rank's part of the plan.
        choice: Rule of the next token; None for the loss.

    Returns:
        One tensor for each micro-batch on a last stage, and none on other ranks: the micro-batch's term of
        the batch's mean loss, or the best next tokens (see `best_tokens`).
    """
    if work.stage is None:
        return []
    stage, micro_batches = work.stage, MicroBatches(work)
    received = received_tensors(stage, _receiving_inputs(work.instructions), micro_batches.layouts)
    messages = list_messages(stage, micro_batches.layouts)
    results = []
    inputs: dict[int, Tensor] = {}
    outputs: dict[int, Tensor] = {}
    sent: tuple[dist.Work, Tensor] | None = None
    for instruction in work.instructions:
        match instruction:
            case Forward(micro_batch) if (packed := micro_batches.take(micro_batch)) is not None:
                input_tH = inputs.pop(micro_batch, None)
                with torch.no_grad():
                    output = (
                        stage.best_tokens(input_tH, packed, choice)
                        if choice is not None and stage.is_last
                        else stage.forward(input_tH, packed, work.denominator)
                    )
                micro_batches.read_next()
                if stage.is_last:
                    results.append(output)
                else:
                    outputs[micro_batch] = output
            case SendReceive(peer, next=False, receive=int(arriving)) if (
                layout := micro_batches.layouts[arriving]
            ) is not None:
                input_tH = received.tensor(arriving, stage.hidden_shape(layout), is_gradient=False)
                _receive(input_tH, peer, messages)
                inputs[arriving] = input_tH
            case SendReceive(peer, next=True, send=int(leaving)) if leaving in outputs:
                # One at a time: a send completes when the peer has received.
                _wait(sent, messages)
                sent = _send(messages.pack(outputs.pop(leaving)), peer)
    _wait(sent, messages)
    return results


def _receiving_inputs(instructions: Iterable[Instruction]) -> list[Instruction]:
    """Return the forwards and the messages from the previous stage; no gradient is received."""
    return [
        one
        for one in instructions
        if isinstance(one, Forward) or (isinstance(one, SendReceive) and not one.next)
    ]


def _receive(input_tH: Tensor, peer: int, messages: Messages) -> None:
    message = messages.room(input_tH)
    dist.batch_isend_irecv([dist.P2POp(dist.irecv, message, peer)])[0].wait()
    messages.unpack(message, input_tH)


def _send(message: Tensor, peer: int) -> tuple[dist.Work, Tensor]:
    return dist.batch_isend_irecv([dist.P2POp(dist.isend, message, peer)])[0], message


def _wait(sent: tuple[dist.Work, Tensor] | None, messages: Messages) -> None:
    if sent is not None:
        work, message = sent
        work.wait()
        messages.sent(message)
