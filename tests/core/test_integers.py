"""Every integer argument of the native module refuses other values under its name."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from core.links import table
from helpers import refused
from hydraulis import (
    BalanceOptions,
    Cluster,
    CostProfile,
    LayerSplit,
    LengthHistogram,
    Link,
    Parameter,
    Planner,
    Scheme,
    SearchBudget,
    balance,
    pack_windows,
    propose,
)
from hydraulis._core import micro_batches_to_measure, uniform_plans

PROFILE = CostProfile.preset("llama-32b-a800")
CLUSTER = Cluster(gpus=16, gpus_per_node=8)
PLANNER = Planner(PROFILE, CLUSTER, strategies=["1x<tp16>"])
PLAN = PLANNER.plan([100, 200])
POSITION: Any = PLAN.position(0)
TIMES: dict[str, Any] = {"linear_ms_per_token": 1.0, "quadratic_ms_per_token2": 0.0}

ARGUMENTS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "balance.replicas": (
        "replicas",
        lambda value: balance([4], replicas=value, cap_tokens=8, barrier="step", **TIMES),
    ),
    "balance.cap_tokens": (
        "cap_tokens",
        lambda value: balance([4], replicas=1, cap_tokens=value, barrier="step", **TIMES),
    ),
    "BalanceOptions.micro_batches": ("micro_batches", lambda value: BalanceOptions(micro_batches=value)),
    "BalanceOptions.multiple_of": ("multiple_of", lambda value: BalanceOptions(multiple_of=value)),
    "pack_windows": ("window_tokens", lambda value: pack_windows([4], window_tokens=value)),
    "Cluster.gpus": ("gpus", lambda value: Cluster(gpus=value, gpus_per_node=1)),
    "Cluster.gpus_per_node": ("gpus_per_node", lambda value: Cluster(gpus=8, gpus_per_node=value)),
    "Cluster.devices": ("devices", lambda value: Cluster(gpus=1, gpus_per_node=1, devices=[value])),
    "Cluster.memory_bytes": ("memory_bytes", lambda value: Cluster(1, 1, memory_bytes=[value])),
    "LayerSplit": ("num_hidden_layers", lambda value: LayerSplit(value)),
    "SearchBudget": ("candidates", lambda value: SearchBudget(candidates=value)),
    "Planner": ("max_strategies", lambda value: Planner(PROFILE, CLUSTER, max_strategies=value)),
    "plan_lookahead": ("max_delay", lambda value: PLANNER.plan_lookahead([[4]], max_delay=value)),
    "propose": ("k", lambda value: propose(PROFILE, CLUSTER, [[4]], value)),
    "uniform_plans": ("sequences", lambda value: uniform_plans(PROFILE, CLUSTER, 4, value)),
    "sample": ("seed", lambda value: LengthHistogram([4]).sample(tokens_per_batch=8, count=1, seed=value)),
    "position": ("rank", lambda value: PLAN.position(value)),
    "instructions": ("rank", lambda value: PLAN.instructions(value)),
    "tensor_group": ("rank", lambda value: POSITION.tensor_group(value)),
    "Parameter": (
        "rows",
        lambda value: Parameter("a", rows=value, row_elements=1, units=1, layer_groups=[0]),
    ),
    "layer_groups": (
        "layer_groups",
        lambda value: Parameter("a", rows=1, row_elements=1, units=1, layer_groups=[0, value]),
    ),
    "Link": ("parameter_bytes", lambda value: Link(table(2), gigabytes_per_s=1, parameter_bytes=value)),
    "micro_batches_to_measure": ("number", lambda value: micro_batches_to_measure(8, 8, value)),
}

OF_MODEL = ("LayerSplit",)


@pytest.mark.parametrize("value", [2.5, 2.0, "2", True, 1 << 64, -(1 << 70), 1 << 200], ids=str)
@pytest.mark.parametrize("argument", ARGUMENTS)
def test_a_value_that_is_no_integer_is_refused(argument: str, value: object) -> None:
    name, call = ARGUMENTS[argument]
    if argument == "LayerSplit" and value is True:
        return
    code = "model_invalid" if argument in OF_MODEL else "argument_invalid"
    with refused(code, f"{name} is "):
        call(value)


def test_every_integer_type_of_numpy_is_accepted() -> None:
    kinds: list[Any] = [np.int8, np.uint16, np.int64, np.uint64]
    for kind in kinds:
        assert Cluster(gpus=kind(8), gpus_per_node=kind(4)) == Cluster(gpus=8, gpus_per_node=4)
    histogram, seeds = LengthHistogram([4, 5]), [1, kinds[0](1)]
    drawn = [histogram.sample(tokens_per_batch=8, count=1, seed=seed) for seed in seeds]
    assert drawn[0][0].tolist() == drawn[1][0].tolist()
    assert len(LengthHistogram([4]).sample(tokens_per_batch=8, count=2, seed=2**64 - 1)) == 2


@pytest.mark.parametrize("lengths", [[0], [-1], [1.5], [1 << 63], [5, 1 << 40]])
def test_lengths_of_a_micro_batch_are_within_the_limits_of_a_batch(lengths: list[float]) -> None:
    with refused("lengths_invalid"):
        PROFILE.micro_batch_ms(Scheme("<tp8>"), lengths)
    filled = PROFILE.micro_batch_ms(Scheme("<tp8>"), np.array([5, 6]))
    assert 0 < PROFILE.micro_batch_ms(Scheme("<tp8>"), []) < filled
