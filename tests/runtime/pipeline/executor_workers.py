"""Workers of test_executor.py."""

import gc
import time
from collections.abc import Sequence
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis import Plan
from hydraulis._core import Backward, Forward
from hydraulis.config.kinds import MemoryRule
from hydraulis.runtime.pipeline import executor, receive_block
from hydraulis.runtime.pipeline.forward_only import run_forward
from hydraulis.runtime.pipeline.receive_block import ReceiveBlock
from hydraulis.runtime.worker import Worker
from runtime.tiny import make_worker, plan_for

RUNS: list["RecordingRun"] = []


class RecordingRun(executor._Run):
    """Remembers what is in flight at its worst moment."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.most_outputs = 0
        self.most_parked = 0
        RUNS.append(self)

    def forward(self, micro_batch: int) -> None:
        super().forward(micro_batch)
        self._count()

    def backward(self, micro_batch: int) -> None:
        super().backward(micro_batch)
        self._count()

    def _count(self) -> None:
        self.most_outputs = max(self.most_outputs, len(self._output))
        self.most_parked = max(self.most_parked, len(self._unsent))


class Report(NamedTuple):
    """What one rank's instruction list came to."""

    num_forwards: int
    num_backwards: int
    durations_ms: list[float]
    loss: float
    left_over: list[int]
    most_outputs: int
    most_parked: int
    graphs_alive: int
    most_kept: int
    gradients_awaited: int


def run_plans(
    strategies: Sequence[str], lengths: Sequence[int], vocab_size: int, memory: MemoryRule = "per_micro_batch"
) -> list[Report]:
    setattr(executor, "_Run", RecordingRun)  # noqa: B010
    return [_run_plan(strategy, lengths, vocab_size, memory) for strategy in strategies]


def _run_plan(strategy: str, lengths: Sequence[int], vocab_size: int, memory: MemoryRule) -> Report:
    RUNS.clear()
    plan = plan_for(dist.get_world_size(), strategy, lengths, memory)
    worker = make_worker([strategy])
    losses = forward_backward(worker, plan, lambda sequence: tokens_of(sequence, lengths, vocab_size))
    (run,) = RUNS
    instructions = plan.instructions(dist.get_rank())
    left_over = (run._input, run._output, run._output_gradient, run._input_gradient, run._unsent)
    return Report(
        sum(isinstance(instruction, Forward) for instruction in instructions),
        sum(isinstance(instruction, Backward) for instruction in instructions),
        worker.timers.read().computed_ms,
        sum(loss.item() for loss in losses),
        [len(container) for container in left_over],
        run.most_outputs,
        run.most_parked,
        _graphs_alive(),
        worker.memory.saved.most_bytes if worker.memory.saved else 0,
        sum(worker.redistribution._reduction._pending.values()),
    )


def forward_backward(worker: Worker, plan: Plan, read: Any) -> list[Tensor]:
    """Run a step up to its reduction, which is not finished."""
    work = worker.prepare(plan, read)
    worker.start_measuring(plan)
    worker.redistribution.start_parameter_gather(plan, work)
    return executor.run_pipeline(work, worker.redistribution, worker.timers, worker.memory.saved)


def tokens_of(sequence: int, lengths: Sequence[int], vocab_size: int) -> Any:
    return np.random.default_rng(sequence).integers(vocab_size, size=lengths[sequence]).astype(np.uint8)


def _graphs_alive() -> int:
    """Count tensors that still hang on an autograd graph."""
    gc.collect()
    # By type: isinstance() would ask deprecated things of torch for their class, and they warn.
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]
    return sum(tensor.grad_fn is not None for tensor in tensors)


def timed_rank_that_waits() -> tuple[float, float]:
    """Make the last stage wait for a slow first one; return this rank's durations and how long it slept."""
    plan = plan_for(2, "1x<pp2>", [30, 30, 30])
    worker = make_worker(["1x<pp2>"])
    slept_ms = 0.0
    if dist.get_rank() == 0:
        stage = worker.stage(plan.position(0), None)  # type: ignore[arg-type]
        forward = stage.forward

        def slow(*args: Any) -> torch.Tensor:
            nonlocal slept_ms
            time.sleep(0.2)
            slept_ms += 200.0
            return forward(*args)

        setattr(stage, "forward", slow)  # noqa: B010
    forward_backward(worker, plan, lambda _: np.zeros(30, dtype=np.uint8))
    return sum(worker.timers.read().computed_ms), slept_ms


def gradients_in_places(strategy: str, lengths: Sequence[int]) -> tuple[list[bytes], list[int]]:
    """Run a step with a tensor for each received tensor, and with places in one block.

    Returns:
        The bytes of all gradients of both runs, and the numbers of received tensors with places.
    """
    plan = plan_for(dist.get_world_size(), strategy, lengths, "in_flight")
    worker = make_worker([strategy])
    found, places = [], []
    received = ReceiveBlock.tensor

    def counted(block: ReceiveBlock, *args: Any, **kwargs: Any) -> Tensor:
        places.append(args[0])
        return received(block, *args, **kwargs)

    for has_places in (False, True):
        with (
            patch.object(receive_block, "_has_places", lambda _, has_places=has_places: has_places),
            patch.object(ReceiveBlock, "tensor", counted),
        ):
            forward_backward(worker, plan, lambda sequence: tokens_of(sequence, lengths, 256))
        found.append(worker.local_shard.gradient.numpy().tobytes())
        worker.redistribution.finish_gradient_reduction()
    return found, places


def losses_in_places(strategy: str, lengths: Sequence[int]) -> tuple[list[list[bytes]], list[int], int]:
    """Run an evaluation with a tensor for each received input, and with places in one block.

    Returns:
        The terms of the loss of both runs, the micro-batches whose inputs had places, and the number of
        different places.
    """
    plan = plan_for(dist.get_world_size(), strategy, lengths, "in_flight")
    worker = make_worker([strategy])
    found, micro_batches, starts = [], [], set()
    received = ReceiveBlock.tensor

    def counted(block: ReceiveBlock, *args: Any, **kwargs: Any) -> Tensor:
        input_tH = received(block, *args, **kwargs)
        micro_batches.append(args[0])
        starts.add(input_tH.storage_offset())
        return input_tH

    for has_places in (False, True):
        work = worker.prepare(plan, lambda sequence: tokens_of(sequence, lengths, 256))
        worker.redistribution.gather_parameters(plan)
        with (
            patch.object(receive_block, "_has_places", lambda _, has_places=has_places: has_places),
            patch.object(ReceiveBlock, "tensor", counted),
        ):
            found.append([loss.numpy().tobytes() for loss in run_forward(work)])
    return found, micro_batches, len(starts)
