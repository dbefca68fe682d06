"""Workers of test_messages.py."""

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
    """

    loss: float
    evaluated: float
    gradient: Tensor
    sent: list[tuple[torch.dtype, int]]
    warmed_up: int


def run_with(strategy: str, lengths: list[int], *, float8_messages: bool) -> MessageRun:
    plan = plan_for(dist.get_world_size(), strategy, lengths)
    settings = train_config(dtype=torch.bfloat16, seed=SEED, float8_messages=float8_messages)
    worker = Worker(small_config(), OPTIMIZER, settings, schemes=Strategy(strategy).schemes)
    sent: list[tuple[torch.dtype, int]] = []
    exchange = dist.batch_isend_irecv

    def counted(operations: list[Any]) -> Any:
        sent.extend((one.tensor.dtype, one.tensor.numel()) for one in operations if one.op is dist.isend)
        return exchange(operations)

    def read(sequence: int) -> Any:
        return tokens_of(sequence, lengths, small_config().vocab_size)

    with patch.object(dist, "batch_isend_irecv", counted):
        with patch.object(Float8Messages, "pack", autospec=True, side_effect=Float8Messages.pack) as packed:
            worker.prepare(plan, read)
        losses = forward_backward(worker, plan, read)
        gradient = worker.local_shard.gradient.clone()
        worker.redistribution.finish_gradient_reduction()
        work = worker.prepare(plan, read)
        worker.redistribution.gather_parameters(plan)
        evaluated = run_forward(work)
    return MessageRun(total(losses), total(evaluated), gradient, sent, packed.call_count)


def total(losses: list[Tensor]) -> float:
    return sum(loss.item() for loss in losses)
