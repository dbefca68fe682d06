"""Workers of test_on_devices.py."""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis import Strategy
from hydraulis.config.model import ModelConfig
from hydraulis.config.optimizer import OptimizerConfig
from hydraulis.parallel import groups
from hydraulis.parallel.symmetric_memory import SymmetricBuffer
from hydraulis.runtime.pipeline.executor import run_pipeline
from hydraulis.runtime.ranks.streams import StreamEvent
from hydraulis.runtime.redistribute.exchange_groups import ExchangeGroup, StartedExchange
from hydraulis.runtime.step import evaluate, train_step
from hydraulis.runtime.worker import Worker
from parallel.symmetric_buffers import mapper
from runtime.gathered import gather
from runtime.tiny import OPTIMIZER, SEED, plan_for, train_config


class Trained(NamedTuple):
    """What some iterations came to; parameters and gradients on rank 0 alone."""

    losses: list[float]
    gradients: list[dict[str, Tensor]]
    parameters: dict[str, Tensor]
    evaluated: float


def train(
    device: str,
    config: ModelConfig,
    strategies: Sequence[str],
    lengths: Sequence[int],
    dtype: torch.dtype,
    optimizer: OptimizerConfig = OPTIMIZER,
    **settings: Any,
) -> Trained:
    """Carry one batch out by each strategy in turn, a step each."""
    losses, gradients = [], []
    with _as_the_sanitizer_counts(device):
        worker = _make_worker(device, config, strategies, dtype, optimizer, **settings)
        tokens = _reader(config, lengths)
        for strategy in strategies:
            plan = plan_for(dist.get_world_size(), strategy, lengths)
            losses.append(train_step(worker, plan, tokens).loss)
            gradients.append(gather(worker.optimizer_shard, worker.optimizer_shard.gradient) or {})
        evaluated = evaluate(worker, plan, tokens)
    return Trained(
        losses, gradients, gather(worker.optimizer_shard, worker.optimizer_shard.master) or {}, evaluated
    )


@contextmanager
def _as_the_sanitizer_counts(device: str) -> Iterator[None]:
    """Let who waits for an exchange wait for the stream of its start too, if torch's sanitizer watches.

    The sanitizer takes an exchange for work of the stream that starts it, later than all events within the
    start. NCCL has a stream of its own, which the wait is for, so a wait by another stream would be missed.
    """
    if "TORCH_CUDA_SANITIZER" not in os.environ:
        yield
        return
    start = ExchangeGroup.start

    def start_watched(group: ExchangeGroup, *arguments: Any) -> StartedExchange:
        exchange = start(group, *arguments)
        return _WatchedExchange(exchange, StreamEvent(torch.device(device, torch.cuda.current_device())))

    with patch.object(ExchangeGroup, "start", start_watched):
        yield


class _WatchedExchange(NamedTuple):
    exchange: StartedExchange
    started: StreamEvent

    def is_completed(self) -> bool:
        return self.exchange.is_completed()

    def wait(self) -> None:
        self.exchange.wait()
        self.started.wait()


def train_compiled(device: str, *arguments: Any, **settings: Any) -> Trained:
    """Train with compiled operations; on the CPU Triton's interpreter runs them."""
    with ExitStack() as stack:
        if device == "cpu":
            stack.enter_context(patch("hydraulis.runtime.worker.require_triton"))
        return train(device, *arguments, compile=True, **settings)


def train_through_buffers(
    folder: Path,
    device: str,
    config: ModelConfig,
    strategies: Sequence[str],
    lengths: Sequence[int],
    dtype: torch.dtype,
) -> tuple[Trained, int]:
    """Train with symmetric buffers of 4 KiB, and count this rank's rounds through them."""
    with ExitStack() as stack:
        map_buffers, made = mapper(folder, 4096), list[SymmetricBuffer]()

        def map_noted(group: dist.ProcessGroup) -> SymmetricBuffer:
            made.append(map_buffers(group))
            return made[-1]

        stack.enter_context(patch.object(groups, "map_buffers", map_noted))
        if device == "cpu":
            stack.enter_context(patch("hydraulis.runtime.worker.require_symmetric_memory"))
        trained = train(device, config, strategies, lengths, dtype, symmetric_memory=True)
    return trained, sum(buffer._num_rounds for buffer in made)


def train_without_waiting(
    device: str,
    config: ModelConfig,
    strategies: Sequence[str],
    lengths: Sequence[int],
    dtype: torch.dtype,
    within: Callable[[], None] = lambda: None,
) -> bool:
    """Step by each strategy twice, the second time with an error where the host waits for the device.

    Args:
        device: Device of the ranks.
        config: Configuration of the model.
        strategies: Strategies, one after another.
        lengths: Tokens of each of the batch's sequences.
        dtype: Number type of the model.
        within: Function that each pipeline of the second time calls.

    Returns:
        Whether all losses are finite.
    """
    worker = _make_worker(device, config, strategies, dtype)
    tokens = _reader(config, lengths)

    def watched(*arguments: Any) -> Any:
        torch.cuda.set_sync_debug_mode("error")
        try:
            within()
            return run_pipeline(*arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    losses = []
    for strategy in strategies:
        plan = plan_for(dist.get_world_size(), strategy, lengths)
        losses.append(train_step(worker, plan, tokens).loss)
        with patch("hydraulis.runtime.step.run_pipeline", watched):
            losses.append(train_step(worker, plan, tokens).loss)
    return all(map(math.isfinite, losses))


def planted_wait() -> None:
    torch.ones(1, device="cuda").item()


def _make_worker(
    device: str,
    config: ModelConfig,
    strategies: Sequence[str],
    dtype: torch.dtype,
    optimizer: OptimizerConfig = OPTIMIZER,
    **more: Any,
) -> Worker:
    schemes = {scheme for text in strategies for scheme in Strategy(text).schemes}
    settings = train_config(dtype=dtype, seed=SEED, device=device, **more)
    worker = Worker(config, optimizer, settings, schemes=sorted(schemes))
    assert worker.optimizer_shard.master.device.type == device
    return worker


def _reader(config: ModelConfig, lengths: Sequence[int]) -> Callable[[int], Any]:
    def tokens(sequence: int) -> Any:
        rng = np.random.default_rng(sequence)
        return rng.integers(config.vocab_size, size=lengths[sequence]).astype(np.uint8)

    return tokens
