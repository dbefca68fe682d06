"""Workers of test_messages.py."""

from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis import Strategy
from hydraulis.runtime.pipeline.forward_only import run_forward
from hydraulis.runtime.pipeline.messages import Float8Messages
from hydraulis.runtime.worker import Worker
from runtime.pipeline.executor_workers import forward_backward, tokens_of
from runtime.tiny import OPTIMIZER, SEED, plan_for, train_config
from small_model import small_config


class MessageRun(NamedTuple):
    """One iteration and one evaluation of a rank.

    Attributes:
        loss: Sum of the rank's terms of the loss in training.
        evaluated: The same sum in an evaluation.
        gradient: Gradients of the rank's local shard.
        sent: Type and elements of each message that the rank sent, in training and then in the evaluation.
        warmed_up: Number of tensors that the rank rounded before the step.
        num_places: Number of memories of messages that the rank sent or received.
    """

    loss: float
    evaluated: float
    gradient: Tensor
    sent: list[tuple[torch.dtype, int]]
    warmed_up: int
    num_places: int


class Send:
    """The work of a send, whose message is sent once it has been waited for."""

    def __init__(self, unsent: set[int], work: dist.Work, place: int) -> None:
        self._unsent, self._work, self._place = unsent, work, place

    def wait(self) -> None:
        self._work.wait()
        self._unsent.discard(self._place)


def run_with(
    strategy: str, lengths: list[int], *, float8_messages: bool, in_turns: bool = True
) -> MessageRun:
    """Run an iteration and an evaluation.

    Args:
        strategy: Strategy of the plan.
        lengths: Lengths of the sequences.
        float8_messages: Whether messages are in float8.
        in_turns: Whether messages in float8 use memory again.
    """
    plan = plan_for(dist.get_world_size(), strategy, lengths)
    settings = train_config(dtype=torch.bfloat16, seed=SEED, float8_messages=float8_messages)
    worker = Worker(small_config(), OPTIMIZER, settings, schemes=Strategy(strategy).schemes)
    sent: list[tuple[torch.dtype, int]] = []
    memories: list[torch.UntypedStorage] = []
    unsent: set[int] = set()
    exchange = dist.batch_isend_irecv

    def counted(operations: list[Any]) -> list[Any]:
        # They live on, so that no other memory gets their address.
        memories.extend(one.tensor.untyped_storage() for one in operations)
        places = [one.tensor.untyped_storage().data_ptr() for one in operations]
        assert not unsent.intersection(places), "the memory of a message that is not sent is used again"
        sends = [place for one, place in zip(operations, places, strict=True) if one.op is dist.isend]
        sent.extend((one.tensor.dtype, one.tensor.numel()) for one in operations if one.op is dist.isend)
        unsent.update(sends)
        works = exchange(operations)
        # A send is the last operation.
        return [*works[: len(works) - len(sends)], *map(partial(Send, unsent), works[-1:], sends)]

    def read(sequence: int) -> Any:
        return tokens_of(sequence, lengths, small_config().vocab_size)

    with ExitStack() as stack:
        stack.enter_context(patch.object(dist, "batch_isend_irecv", counted))
        if not in_turns:
            stack.enter_context(patch.object(Float8Messages, "sent"))
        with patch.object(Float8Messages, "pack", autospec=True, side_effect=Float8Messages.pack) as packed:
            worker.prepare(plan, read)
        losses = forward_backward(worker, plan, read)
        gradient = worker.local_shard.gradient.clone()
        worker.redistribution.finish_gradient_reduction()
        work = worker.prepare(plan, read)
        worker.redistribution.gather_parameters(plan)
        evaluated = run_forward(work)
    num_places = len({memory.data_ptr() for memory in memories})
    return MessageRun(total(losses), total(evaluated), gradient, sent, packed.call_count, num_places)


def total(losses: list[Tensor]) -> float:
    return sum(loss.item() for loss in losses)
