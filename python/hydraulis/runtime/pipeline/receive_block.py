"""One block of memory for all activations and gradients that a stage receives in a step.

On CUDA torch holds the memory of a message until the device has passed it, and the host runs ahead of the
device: a new tensor for each message would take memory that no plan counts. The instruction list says when
each tensor is received and when its backward is done, so each gets a place in one block before the first
message. A place is used again once its backward is launched, because NCCL receives behind all work of the
stream. Plans count the received tensors that exist at a time among the activations. An evaluation runs no
backwards, so a place is used again after its forward.
"""

import math
from collections.abc import Iterable, Sequence
from operator import itemgetter

import torch
from torch import Tensor

from hydraulis._core import Backward, Forward, SendReceive
from hydraulis.data.collate import MicroBatchLayout
from hydraulis.runtime.pipeline.messages import Messages
from hydraulis.runtime.pipeline.stage import Stage

# Places start at multiples of this number of elements, 256 bytes or more, as those of torch's allocator.
_ALIGNMENT = 128
Instruction = Forward | Backward | SendReceive
# Whether a received tensor is the gradient of the stage's output, or else its input; and its micro-batch.
Received = tuple[bool, int]


class ReceiveBlock:
    """The places of all received tensors of one list.

    Args:
        instructions: Instructions of the rank.
        elements: Elements of a received tensor of each micro-batch; 0 for one that is not sent.
        dtype: Type of the received tensors.
        device: Device of the rank.
    """

    def __init__(
        self,
        instructions: Iterable[Instruction],
        elements: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._places, size = place_received(instructions, elements)
        self._block = torch.empty(size, dtype=dtype, device=device)

    def tensor(self, micro_batch: int, shape: tuple[int, int], *, is_gradient: bool) -> Tensor:
        """Return the uninitialised tensor of a received tensor.

        Args:
            micro_batch: Index of the micro-batch.
            shape: Shape of the tensor.
            is_gradient: Whether it is the gradient of the stage's output, or else its input.
        """
        place = self._places[is_gradient, micro_batch]
        # A tensor of its own and not a view: autograd counts the versions of a base and its views together.
        strides = (shape[1], 1)
        return self._block.new_empty(0).set_(self._block.untyped_storage(), place, shape, strides)


class SeparateTensors:
    """A tensor of its own for each received tensor, as the CPU's counter of saved activations expects.

    Args:
        dtype: Type of the received tensors.
        device: Device of the rank.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device

    def tensor(self, _micro_batch: int, shape: tuple[int, int], *, is_gradient: bool) -> Tensor:  # noqa: ARG002
        """Return an uninitialised tensor."""
        return torch.empty(shape, dtype=self._dtype, device=self._device)


def received_tensors(
    stage: Stage, instructions: Sequence[Instruction], micro_batches: Sequence[MicroBatchLayout | None]
) -> ReceiveBlock | SeparateTensors:
    """Return the memory of all tensors that a list receives.

    Args:
        stage: Stage of this rank.
        instructions: Instructions of the list whose messages are received.
        micro_batches: Micro-batches of the list; None for an empty one.
    """
    if not _has_places(stage):
        return SeparateTensors(stage.dtype, stage.device)
    elements = [0 if packed is None else math.prod(stage.hidden_shape(packed)) for packed in micro_batches]
    return ReceiveBlock(instructions, elements, stage.dtype, stage.device)


def list_messages(stage: Stage, micro_batches: Iterable[MicroBatchLayout | None]) -> Messages:
    """Return the messages of a list, with memory for the largest one.

    Args:
        stage: Stage of this rank.
        micro_batches: Micro-batches of the list; None for an empty one.
    """
    return stage.messages.of_list(
        stage.hidden_shape(packed) for packed in micro_batches if packed is not None
    )


def _has_places(stage: Stage) -> bool:
    return stage.device.type == "cuda"


def place_received(
    instructions: Iterable[Instruction], elements: Sequence[int]
) -> tuple[dict[Received, int], int]:
    """Give each received tensor the first place that is free from its message until its last use.

    The last use is the micro-batch's backward; in a list without backwards its forward. Where tensors of
    different sizes leave gaps that make the block larger than places of the largest size, all places have
    that size.

    Returns:
        The first element of each received tensor, and the elements of the block.
    """
    instructions = list(instructions)
    lengths = [-(-number // _ALIGNMENT) * _ALIGNMENT for number in elements]
    fitted = _placed(instructions, lengths)
    even = _placed(instructions, [max(lengths, default=0) if length else 0 for length in lengths])
    return min(fitted, even, key=itemgetter(1))


def _placed(instructions: Sequence[Instruction], lengths: Sequence[int]) -> tuple[dict[Received, int], int]:
    last_use = Backward if any(isinstance(one, Backward) for one in instructions) else Forward
    places: dict[Received, int] = {}
    # Start and end of each place in use.
    used: dict[Received, tuple[int, int]] = {}
    size = 0
    for instruction in instructions:
        match instruction:
            case SendReceive(_, next=is_gradient, receive=int(micro_batch)) if lengths[micro_batch]:
                start = _first_gap(used.values(), lengths[micro_batch])
                end = start + lengths[micro_batch]
                places[is_gradient, micro_batch] = start
                used[is_gradient, micro_batch] = start, end
                size = max(size, end)
            case Forward(micro_batch) | Backward(micro_batch) if isinstance(instruction, last_use):
                used.pop((True, micro_batch), None)
                used.pop((False, micro_batch), None)
    return places, size


def _first_gap(used: Iterable[tuple[int, int]], length: int) -> int:
    start = 0
    for first, end in sorted(used):
        if first - start >= length:
            break
        start = end
    return start
