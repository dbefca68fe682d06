"""Micro-batches are laid out before the first forward, and read one ahead of their forwards."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from devices import one_rank
from hydraulis import Scheme
from hydraulis.data import collate as collate_module
from hydraulis.runtime.pipeline.stage import Stage
from hydraulis.runtime.step import evaluate, train_step
from hydraulis.runtime.worker import Worker
from runtime.tiny import OPTIMIZER, SEED, plan_for, train_config
from small_model import small_config

MODEL = small_config()
# Of at most 32 tokens each: four micro-batches of one sequence.
LENGTHS = [30, 29, 28, 27]


@pytest.mark.parametrize("step", [train_step, evaluate])
def test_a_micro_batch_is_read_behind_the_forward_before(
    step: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    forward, lay_out = Stage.forward, collate_module.lay_out

    def noted_forward(self: Stage, *arguments: Any) -> torch.Tensor:
        events.append("forward")
        return forward(self, *arguments)

    def noted_layout(*arguments: Any, **more: Any) -> Any:
        events.append("layout")
        return lay_out(*arguments, **more)

    def read(sequence: int) -> Any:
        events.append("read")
        return np.arange(LENGTHS[sequence]) % MODEL.vocab_size

    with one_rank("cpu"):
        settings = train_config(dtype=torch.float32, seed=SEED)
        worker = Worker(MODEL, OPTIMIZER, settings, schemes=[Scheme("<1>")])
        plan = plan_for(1, "1x<1>", LENGTHS)
        assert [len(ids) for ids in plan.replicas[0].micro_batches] == [1, 1, 1, 1]
        worker.prepare(plan, read)
        monkeypatch.setattr(Stage, "forward", noted_forward)
        monkeypatch.setattr("hydraulis.runtime.pipeline.stage.lay_out", noted_layout)
        step(worker, plan, read)
    # The last micro-batch has none behind it.
    assert events == ["layout"] * 4 + ["read", "forward"] * 4
