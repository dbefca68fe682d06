"""Workers of test_frozen.py."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hydraulis import Strategy
from hydraulis.config.model import ModelConfig
from hydraulis.config.optimizer import OptimizerConfig
from hydraulis.profile.bench import SchemeBench
from hydraulis.profile.memory import model_memory
from hydraulis.runtime.worker import Worker
from profiles import made_up_profile
from runtime.gathered import gather
from runtime.tiny import train_config
from runtime.worker_workers import SEED, Batch, Step, _step, caps_of
from small_model import small_config


class Frozen(NamedTuple):
    """What rank 0 saw.

    Attributes:
        steps: Steps of the parameters that are trained.
        before: Frozen parameters at the start.
        after: Frozen parameters at the end.
        sent: Number of times they were sent, after each step.
        timed: Whether each sending was timed as a transfer.
        optimizer_bytes: Optimizer state of the model, as a profile counts it.
        elements: Elements of this rank's buffers of gradients and moments.
    """

    steps: list[Step]
    before: dict[str, Tensor]
    after: dict[str, Tensor]
    sent: list[int]
    timed: list[bool]
    optimizer_bytes: int
    elements: tuple[int, int]


def train_frozen(
    config: ModelConfig,
    optimizer: Any,
    frozen: Sequence[str],
    steps: Sequence[tuple[str, Batch]],
) -> Frozen:
    """Run each batch under its strategy."""
    schemes = {scheme for strategy, _ in steps for scheme in Strategy(strategy).schemes}
    settings = train_config(dtype=torch.float64, seed=SEED, frozen=tuple(frozen))
    worker = Worker(config, optimizer, settings, schemes=sorted(schemes))
    parameter_gather = worker.redistribution._gather
    timed: list[bool] = []
    start, transferring = parameter_gather.start, worker.timers.transferring
    is_timing = False

    def counted(buckets: Any) -> None:
        if not all(bucket.trained for bucket in buckets):
            timed.append(is_timing)
        start(buckets)

    @contextmanager
    def timing() -> Iterator[None]:
        nonlocal is_timing
        is_timing = True
        with transferring():
            yield
        is_timing = False

    setattr(parameter_gather, "start", counted)  # noqa: B010
    setattr(worker.timers, "transferring", timing)  # noqa: B010
    before = _frozen(worker)
    records, sent = [], []
    for strategy, batch in steps:
        records.append(_step(worker, made_up_profile(caps_of(worker), "ring"), strategy, batch))
        sent.append(len(timed))
    after = _frozen(worker)
    elements = (
        worker.optimizer_shard.gradient.numel(),
        sum(len(moment) for moment in worker.optimizer_shard.optimizer.moments.values()),
    )
    optimizer_bytes = model_memory(worker, 1).optimizer_bytes
    return Frozen(records, before, after, sent, timed, optimizer_bytes, elements)


def _frozen(worker: Worker) -> dict[str, Tensor]:
    master = gather(worker.optimizer_shard, worker.optimizer_shard.master) or {}
    return {name: value for name, value in master.items() if not worker.parameters.is_trained(name)}


def time_a_frozen_stage() -> tuple[bool, float]:
    """Time a stage that has no backward, and the one behind it; say if it takes time, and what it keeps."""
    config = small_config(vocab_size=256, num_hidden_layers=2)
    frozen = ("model.embed_tokens.*", "model.layers.0.*")
    settings = train_config(dtype=torch.float32, frozen=frozen)
    (scheme,) = Strategy("1x<pp2>").schemes
    bench = SchemeBench(Worker(config, OptimizerConfig(), settings, schemes=[scheme]), scheme, None)
    bench.initialize_parameters()
    timing = bench.time([9, 5])
    assert timing is not None
    return timing.forward_ms > 0, bench.saved_bytes(16).per_token
