"""The kernels that a configuration chooses reach the stages of a worker and the identity of its profile."""

from typing import Any

import pytest
import torch
from torch import Tensor

from devices import on_cuda, on_each_device, one_rank
from helpers import refused
from hydraulis import Scheme
from hydraulis.model.leaves import PLAIN, compiled_leaves
from hydraulis.profile.measure import _workload
from hydraulis.runtime.pipeline.messages import Float8Messages
from hydraulis.runtime.worker import Worker
from hydraulis.train.notes import describe_kernels
from runtime.pipeline.executor_workers import forward_backward, tokens_of
from runtime.tiny import OPTIMIZER, SEED, plan_for, train_config
from small_model import small_config

CPU = torch.device("cpu")
SCHEME = "<1,selective>"
LENGTHS = [9, 30, 4, 17]
# Multiples of 16 for the linear maps; weights as small as at the start of training.
MODEL = small_config(vocab_size=256, hidden_size=32, intermediate_size=48, head_dim=8, initializer_range=0.05)


def worker_with(dtype: torch.dtype, device: str, **kernels: bool) -> Worker:
    settings = train_config(dtype=dtype, seed=SEED, device=device, **kernels)
    return Worker(MODEL, OPTIMIZER, settings, schemes=[Scheme(SCHEME)])


def gradient(device: str, dtype: torch.dtype, **kernels: bool) -> Tensor:
    """Return the gradients of a step, before their reduction."""
    with one_rank(device):
        worker = worker_with(dtype, device, **kernels)
        plan = plan_for(1, f"1x{SCHEME}", LENGTHS)
        forward_backward(worker, plan, lambda sequence: tokens_of(sequence, LENGTHS, 256))
        found = worker.local_shard.gradient.clone()
        worker.redistribution.finish_gradient_reduction()
    return found


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=on_cuda)])
def test_a_compiled_step_has_the_gradients_of_the_plain_one(device: str) -> None:
    found, plain = (gradient(device, torch.float64, compile=one) for one in (True, False))
    assert plain.any()
    assert not torch.equal(found, plain)
    torch.testing.assert_close(found, plain, rtol=1e-9, atol=1e-12)


@on_each_device
def test_a_step_in_float8_has_gradients_near_those_in_bfloat16(device: str) -> None:
    found, plain = (gradient(device, torch.bfloat16, float8=one) for one in (True, False))
    assert 0.01 < (found - plain).norm() / plain.norm() < 0.2


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("float8", [False, True])
def test_a_worker_gives_its_kernels_to_stages_profile_and_message(
    monkeypatch: pytest.MonkeyPatch, *, compiles: bool, float8: bool
) -> None:
    if compiles:
        pytest.importorskip("triton")
    monkeypatch.setattr("hydraulis.runtime.worker.require_triton", lambda _: None)
    monkeypatch.setattr("hydraulis.runtime.worker.warm_up", lambda _: None)
    monkeypatch.setattr("hydraulis.runtime.worker.require_symmetric_memory", lambda *_: None)
    with one_rank("cpu"):
        # A group of one rank has no tensor ranks.
        float8_kinds = {"float8": float8, "float8_messages": float8}
        worker = worker_with(
            torch.bfloat16, "cpu", compile=compiles, symmetric_memory=compiles, **float8_kinds
        )
        position = plan_for(1, f"1x{SCHEME}", LENGTHS).position(0)
        assert position is not None
        stage = worker.stage(position, None)
        module = stage.module
        workload = _workload(worker, "ring")
    leaves = compiled_leaves(torch.device("cpu")) if compiles else PLAIN
    layer: Any = module.layers["0"]
    assert layer.mlp.leaves is module.leaves is leaves
    assert layer.mlp.down_proj.quantize is (leaves.quantize if float8 else None)
    assert (workload.compiled, workload.float8) == (compiles, float8)
    assert workload.symmetric_memory is compiles
    text = describe_kernels(worker)
    named = ("compiled" in text, "symmetric memory" in text, "maps in float8" in text)
    assert named == (compiles, compiles, float8)
    assert ("messages between stages in float8" in text) is float8
    assert isinstance(stage.messages, Float8Messages) is float8


def test_a_cpu_shares_no_memory() -> None:
    with one_rank("cpu"), refused("device_missing", "train.symmetric_memory = true", "the CPU"):
        worker_with(torch.float64, "cpu", symmetric_memory=True)


def test_a_cpu_has_no_compiled_operations() -> None:
    with one_rank("cpu"), refused("device_missing", "train.compile = true", "the CPU"):
        worker_with(torch.float64, "cpu", compile=True)
