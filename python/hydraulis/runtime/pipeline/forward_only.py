"""Runs an instruction list without its backward half, for a loss that nothing is learnt from.

Legend: t tokens of this rank, H hidden.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis._core import Backward, Exchange, Forward
from hydraulis.data.collate import PackedMicroBatch
from hydraulis.runtime.pipeline.stage import Stage


def execute_forward(
    instructions: Sequence[Forward | Backward | Exchange],
    stage: Stage,
    micro_batches: Sequence[PackedMicroBatch | None],
    denominator: int,
) -> float:
    """Run the forwards of a rank's list, and the exchanges as far as they carry activations.

    In that order no rank waits for one that comes later in the pipeline but to take what it is sent, so the
    lists finish as they did.

    Args:
        instructions: of this rank.
        stage: of this rank.
        micro_batches: by their numbers in the list; None for one without sequences, of which nothing is done.
        denominator: target tokens of the whole batch.

    Returns:
        This rank's share of the batch's mean loss; 0 but on a last stage.
    """
    losses = []
    inputs: dict[int, Tensor] = {}
    outputs: dict[int, Tensor] = {}
    sent: tuple[dist.Work, Tensor] | None = None
    for instruction in instructions:
        match instruction:
            case Forward(micro_batch) if (packed := micro_batches[micro_batch]) is not None:
                output = _forward(stage, inputs.pop(micro_batch, None), packed, denominator)
                if stage.is_last:
                    losses.append(output)
                else:
                    outputs[micro_batch] = output
            case Exchange(peer, next=False, receive=int(received)) if (
                packed := micro_batches[received]
            ) is not None:
                inputs[received] = _receive(stage, packed, peer)
            case Exchange(peer, next=True, send=int(leaving)) if leaving in outputs:
                # One at a time: a send is done when the peer has received.
                _wait(sent)
                sent = _send(outputs.pop(leaving), peer)
    _wait(sent)
    # Only now: on CUDA it waits for the device.
    return sum((loss.item() for loss in losses), 0.0)


def _forward(stage: Stage, input_tH: Tensor | None, batch: PackedMicroBatch, denominator: int) -> Tensor:
    with torch.no_grad():
        return stage.forward(input_tH, batch, denominator)


def _receive(stage: Stage, batch: PackedMicroBatch, peer: int) -> Tensor:
    arriving_tH = torch.empty(stage.hidden_shape(batch), dtype=stage.dtype, device=stage.device)
    dist.batch_isend_irecv([dist.P2POp(dist.irecv, arriving_tH, peer)])[0].wait()
    return arriving_tH


def _send(leaving_tH: Tensor, peer: int) -> tuple[dist.Work, Tensor]:
    return dist.batch_isend_irecv([dist.P2POp(dist.isend, leaving_tH, peer)])[0], leaving_tH


def _wait(sent: tuple[dist.Work, Tensor] | None) -> None:
    if sent is not None:
        sent[0].wait()
