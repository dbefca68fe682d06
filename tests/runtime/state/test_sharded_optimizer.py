"""Optimizers on shards equal their libraries' on the whole model; the schedules are torch's, step by step."""

import math
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import pytest
import torch
from pytorch_optimizer.optimizer.lion import Lion
from torch import nn
from torch.optim import Optimizer, lr_scheduler
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hydraulis.config.optimizer import OptimizerConfig
from hydraulis.config.optimizer_kinds import OPTIMIZERS
from hydraulis.model.parameters import checkpoint_name
from hydraulis.runtime.state import sharded_optimizer
from hydraulis.runtime.state.parameters import ModelParameters
from hydraulis.runtime.state.sharded_optimizer import ShardedOptimizer, learning_rate
from hydraulis.runtime.state.update_rule import DecaySpan
from ranks import run_ranks
from runtime.state.sharded_optimizer_workers import Stepped, continue_all, step_all
from runtime.tiny import SEED
from small_model import FAMILIES, initial_value, small_config

# The norm of the parameters is about 40: some steps are clipped to 1, some are not.
FACTORS = (1e-3, 1.0, 0.5, 1e-2, 2.0, 3e-2)
# By the name of the optimizer, where it is not the default one.
CLASSES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "adamax": torch.optim.Adamax,
    "radam": partial(torch.optim.RAdam, decoupled_weight_decay=True),
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
    "lion": Lion,
}
CONFIGS = {
    "adam": OptimizerConfig(name="adam", betas=(0.8, 0.9), learning_rate=1e-2),
    "adamax": OptimizerConfig(name="adamax", eps=1e-6, learning_rate=1e-2),
    "radam": OptimizerConfig(name="radam", betas=(0.3, 0.9), learning_rate=1e-2),
    "adagrad": OptimizerConfig(name="adagrad", eps=1e-6, learning_rate=1e-2),
    "rmsprop": OptimizerConfig(name="rmsprop", alpha=0.9, learning_rate=1e-2),
    "rmsprop with momentum": OptimizerConfig(
        name="rmsprop", momentum=0.8, learning_rate=1e-2, weight_decay=0.3
    ),
    "sgd": OptimizerConfig(name="sgd", learning_rate=1e-2),
    "sgd with momentum": OptimizerConfig(name="sgd", momentum=0.9, learning_rate=1e-2),
    "sgd with nesterov": OptimizerConfig(
        name="sgd", momentum=0.9, nesterov=True, learning_rate=1e-2, weight_decay=0.3
    ),
    "lion": OptimizerConfig(name="lion", betas=(0.9, 0.7), learning_rate=1e-2),
    "defaults": OptimizerConfig(learning_rate=1e-2, weight_decay=0.3),
    "cosine": OptimizerConfig(learning_rate=1e-2, schedule="cosine", warmup_steps=2, betas=(0.8, 0.9)),
    "other groups": OptimizerConfig(
        learning_rate=1e-2, schedule="wsd", decay_steps=3, no_decay=("*proj*",), weight_decay=0.2
    ),
    "unclipped": OptimizerConfig(
        learning_rate=1e-2, schedule="linear", min_learning_rate=1e-3, clip_norm=0, no_decay=()
    ),
}


@pytest.fixture(scope="module")
def by_rank() -> list[dict[str, Stepped]]:
    results = run_ranks(3, step_all, list(CONFIGS.values()), FACTORS)
    return [dict(zip(CONFIGS, of_rank, strict=True)) for of_rank in results]


def of_torch(config: OptimizerConfig) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Step the whole model with the library's optimizer, clip_grad_norm_ and LambdaLR."""
    shape = small_config(**FAMILIES["every bias"])
    parameters = {
        name: nn.Parameter(initial_value(name, shape, SEED, torch.float64))
        for name in ModelParameters.from_config(shape).shapes
    }
    kept = [name for name in parameters if in_any(name, config.no_decay)]
    groups: list[dict[str, Any]] = [
        {"params": [parameters[name] for name in parameters if name not in kept]},
        {"params": [parameters[name] for name in kept], "weight_decay": 0.0},
    ]
    settings = config.own_settings()
    optimizer = CLASSES[config.name](groups, lr=1.0, weight_decay=config.weight_decay, **settings)
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate(config, step, len(FACTORS))
    )
    norms = []
    for factor in FACTORS:
        for parameter in parameters.values():
            parameter.grad = factor * parameter.detach()
        limit = config.clip_norm or math.inf
        norms.append(nn.utils.clip_grad_norm_(parameters.values(), limit).item())
        optimizer.step()
        rate.step()
    return {name: parameter.detach() for name, parameter in parameters.items()}, norms


def in_any(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(checkpoint_name(name), pattern) for pattern in patterns)


@pytest.mark.parametrize("name", CONFIGS)
def test_it_equals_its_library_on_the_whole_model(by_rank: list[dict[str, Stepped]], name: str) -> None:
    expected, norms = of_torch(CONFIGS[name])
    result = by_rank[0][name]
    assert result.norms == pytest.approx(norms, rel=1e-12)
    assert min(norms) < 1 < max(norms)
    assert result.parameters is not None
    assert result.parameters.keys() == expected.keys()
    for parameter, value in expected.items():
        torch.testing.assert_close(result.parameters[parameter], value, rtol=1e-11, atol=1e-13)


def test_every_optimizer_is_compared() -> None:
    assert {config.name for config in CONFIGS.values()} == OPTIMIZERS.keys() == CLASSES.keys()


def test_its_buffers_are_its_whole_state() -> None:
    (continued,) = run_ranks(1, continue_all, list(CONFIGS.values()))
    assert dict(zip(CONFIGS, continued, strict=True)) == dict.fromkeys(CONFIGS, True)


def test_every_rank_has_the_norm_and_the_learning_rate(by_rank: list[dict[str, Stepped]]) -> None:
    for name, config in CONFIGS.items():
        rates = [learning_rate(config, step, len(FACTORS)) for step in range(len(FACTORS))]
        for rank in by_rank:
            assert rank[name].norms == by_rank[0][name].norms
            assert rank[name].rates == rates


def test_the_default_groups_are_matrices_and_the_other_parameters() -> None:
    names = ModelParameters.from_config(small_config(**FAMILIES["every bias"] | {"qk_norm": True})).names
    undecayed = [name for name in names if in_any(name, OptimizerConfig().no_decay)]
    assert "embed_tokens.weight" in undecayed
    assert {"norm.weight", "layers.0.self_attn.q_norm.weight", "layers.1.mlp.up_proj.bias"} <= set(undecayed)
    decayed = sorted({name.split(".")[-2] for name in names if name not in undecayed})
    assert decayed == ["down_proj", "gate_proj", "k_proj", "lm_head", "o_proj", "q_proj", "up_proj", "v_proj"]


class Operations(TorchDispatchMode):
    """Lists the operations on tensors with as many elements as the gradient."""

    def __init__(self, elements: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own, through super()
        self.elements = elements
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        sizes = [one.numel() for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        if self.elements in sizes:
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
def test_the_fused_kernel_clips_as_a_pass_over_the_gradient_does(name: str) -> None:
    master, gradient = torch.randn(2, 1000)
    found, expected = master.clone(), nn.Parameter(master.clone())
    spans = [DecaySpan(0, len(master), decayed=True)]
    config = OptimizerConfig(name=name, clip_norm=1.0)
    optimizer = ShardedOptimizer(found, gradient, spans, config, steps=4)
    library = CLASSES[name]([expected], lr=0.0, weight_decay=config.weight_decay, **config.own_settings())
    for step in range(4):
        gradient.copy_(torch.randn(1000))
        expected.grad = gradient.clone()
        # Every other step is below the limit.
        norm = nn.utils.clip_grad_norm_([expected], 1.0).item() if step % 2 == 0 else 0.5
        library.param_groups[0]["lr"] = learning_rate(config, step, 4)
        library.step()
        with Operations(1000) as operations:
            optimizer.step(norm)
        assert operations.names == [f"_fused_{name}_"]
        torch.testing.assert_close(found, expected.detach(), rtol=1e-6, atol=1e-7)


class Norms(TorchDispatchMode):
    """Counts the operations that compute norms."""

    number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += "norm" in str(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("elements", [0, 1, 12, 29])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_gradients_square_is_one_operation_over_all_pieces(
    elements: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharded_optimizer, "_PIECE", 4)
    gradient = torch.randn(elements, dtype=dtype)
    spans = [DecaySpan(0, elements, decayed=True)]
    optimizer = ShardedOptimizer(torch.zeros_like(gradient), gradient, spans, OptimizerConfig(), steps=1)
    with Norms() as norms:  # type: ignore[no-untyped-call]
        square = optimizer.gradient_square()
    assert norms.number == 1
    assert square.dtype == torch.float64
    torch.testing.assert_close(square, gradient.double().square().sum(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_has_at_most_the_counted_temporaries(name: str) -> None:
    elements = 1 << 16
    master, gradient = torch.randn(2, elements)
    # The second span is the smaller one.
    spans = [DecaySpan(0, elements - 9, decayed=True), DecaySpan(elements - 9, elements, decayed=False)]
    optimizer = ShardedOptimizer(master, gradient, spans, OptimizerConfig(name=name, clip_norm=0), 9)
    optimizer.step(1.0)
    # Torch 2.11 warns that events would not be kept without `acc_events`.
    with torch.profiler.profile(
        profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True
    ) as seen:
        optimizer.step(1.0)
    held = peak = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    # Numbers of a step, such as its bias corrections.
    assert peak <= optimizer.temporary_bytes + 4096
    if optimizer.temporary_bytes:
        assert optimizer.temporary_bytes == 16 * (elements - 9)
        assert peak >= 4 * (elements - 9)


STEPS, WARMUP, DECAY = 40, 8, 10
RATE, LEAST = 3e-3, 5e-4
Scheduler = Callable[[Optimizer], lr_scheduler.LRScheduler]


def line(first: float, last: float, steps: int) -> Scheduler:
    return lambda optimizer: lr_scheduler.LinearLR(optimizer, first, last, steps)


SCHEDULES: dict[str, tuple[list[Scheduler], list[int]]] = {
    "constant": ([line(1.0, 1.0, 1)], []),
    "cosine": ([lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, STEPS - WARMUP, LEAST)], []),
    "linear": ([line(1.0, LEAST / RATE, STEPS - WARMUP)], []),
    "wsd": ([line(1.0, 1.0, 1), line(1.0, LEAST / RATE, DECAY)], [STEPS - DECAY]),
}


def rates_of_torch(name: str) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=RATE)
    after, later = SCHEDULES[name]
    schedulers = [make(optimizer) for make in (line(1 / WARMUP, 1.0, WARMUP - 1), *after)]
    schedule = lr_scheduler.SequentialLR(optimizer, schedulers, [WARMUP, *later])
    rates = []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


def scheduled(name: str) -> OptimizerConfig:
    return OptimizerConfig(
        learning_rate=RATE,
        schedule=name,  # type: ignore[arg-type]
        warmup_steps=WARMUP,
        decay_steps=DECAY if name == "wsd" else 0,
        min_learning_rate=LEAST,
    )


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_equals_torchs(name: str) -> None:
    rates = [learning_rate(scheduled(name), step, STEPS) for step in range(STEPS)]
    assert rates == pytest.approx(rates_of_torch(name), rel=1e-12)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("steps", [1, WARMUP, WARMUP + 1, DECAY, DECAY + 1])
def test_a_run_shorter_than_its_schedule_stays_within_its_rates(name: str, steps: int) -> None:
    for step in range(steps + 2):
        rate = learning_rate(scheduled(name), step, steps)
        assert RATE / WARMUP <= rate <= RATE or rate == pytest.approx(LEAST)


def test_without_a_warmup_the_first_step_has_the_whole_rate() -> None:
    assert learning_rate(OptimizerConfig(learning_rate=RATE), 0, STEPS) == RATE
    assert learning_rate(OptimizerConfig(learning_rate=RATE, schedule="cosine"), 0, STEPS) == RATE
