"""Warms up a stage, so that the first-time work of its first micro-batch happens before the step.

The first forward and backward initialise libraries, compile kernels, allocate workspaces, and connect the
ranks of the stage's groups. Each of these can make the host wait for its device or for another host. They
would also count as computation in the first step's times.
"""

import numpy as np
import torch

from hydraulis.runtime.pipeline.stage import Stage
from hydraulis.runtime.ranks.host_wait import wait_for_device

# So that every rank of a context group has some.
_TOKENS_PER_RANK = 4
# FlashAttention-4 compiles further kernels for more than 256 sequences, and for sequences longer than a tile.
_MANY, _LONG = 300, 1024


def warm_up(stage: Stage) -> None:
    """Run small micro-batches forward and backward, and zero the gradients.

    Collective over the stage's groups. Nothing may be in flight, and the stage must have no hooks yet.
    """
    for lengths in warm_up_lengths(stage.device, stage.padding_multiple):
        _run(stage, lengths)
    for parameter in stage.trained.values():
        assert parameter.grad is not None
        parameter.grad.zero_()
    wait_for_device(stage.device)


def warm_up_lengths(device: torch.device, multiple: int) -> list[list[int]]:
    """Return the lengths of the sequences of each micro-batch: a small one, on CUDA also one of each kernel.

    Args:
        device: Device of the stage.
        multiple: Divisor of a micro-batch's tokens.
    """
    small = [_TOKENS_PER_RANK * multiple]
    return [small, [1] * _MANY, [_LONG]] if device.type == "cuda" else [small]


def _run(stage: Stage, lengths: list[int]) -> None:
    batch = stage.collate([np.zeros(length, dtype=np.int64) for length in lengths])
    input_tH = None
    if not stage.is_first:
        shape = stage.hidden_shape(batch)
        input_tH = torch.zeros(shape, dtype=stage.dtype, device=stage.device, requires_grad=True)
    output = stage.forward(input_tH, batch, batch.num_tokens)
    # Their memory is not needed again.
    messages = stage.messages.of_list([])
    if not stage.is_last:
        messages.unpack(messages.pack(output.detach()), torch.empty_like(output))
    # A first stage whose parameters are all frozen has no backward.
    if output.requires_grad:
        torch.autograd.backward(output, None if stage.is_last else torch.ones_like(output))
    if input_tH is not None and input_tH.grad is not None:
        # Its gradient is a message too.
        messages.pack(input_tH.grad)
