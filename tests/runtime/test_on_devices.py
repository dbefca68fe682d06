"""Two, four and eight ranks equal one: on the CPU, and over NCCL on the CUDA devices at hand.

One CUDA device is enough for all ranks, which then share it. The adversaries are settings of CUDA, NCCL and
torch under which an order of launches that depends on luck would end in a deadlock or in wrong sums.
"""

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from devices import on_cuda
from hydraulis.config.kinds import DeviceKind
from hydraulis.config.optimizer import OptimizerConfig
from ranks import CUDA_PATIENCE, TIMEOUT_SECONDS, RankError, run_ranks
from runtime.devices_workers import (
    Trained,
    planted_wait,
    train,
    train_compiled,
    train_through_buffers,
    train_without_waiting,
)
from runtime.tiny import OPTIMIZER
from small_model import small_config

LENGTHS = (30, 20, 11, 9, 5, 2, 2)
# Flash attention takes heads of 8 elements.
CONFIG = small_config(qk_norm=True, attention_bias=True, head_dim=8)


class World(NamedTuple):
    """Ranks, ranks of a node, and the strategies of their steps."""

    ranks: int
    node: int
    strategies: tuple[str, ...]


WORLDS = {
    "2-ranks": World(2, 2, ("2x<1>", "1x<tp2>", "1x<pp2>", "1x<cp2>", "1x<1>", "1x<pp2>")),
    # What a rank holds by <1> is not in the order of owners.
    "2-ranks-no-stages": World(2, 2, ("2x<1>", "1x<tp2>", "1x<cp2>", "2x<1>", "1x<1>", "1x<tp2>")),
    "4-ranks": World(
        4, 4, ("1x<pp2>+1x<tp2>", "1x<tp2,pp2>", "4x<1>", "1x<tp4>", "1x<pp3>+1x<1>", "2x<cp2>")
    ),
    "4-ranks-2-nodes": World(
        4, 2, ("1x<pp2>+1x<tp2>", "1x<tp2,pp2>", "4x<1>", "2x<tp2>", "2x<pp2>", "2x<cp2>")
    ),
    "8-ranks": World(
        8, 8, ("2x<tp2,pp2>", "1x<tp4>+1x<pp2>+2x<1>", "8x<1>", "4x<pp2>", "2x<cp2>+2x<tp2>", "2x<tp4>")
    ),
    "8-ranks-2-nodes": World(
        8, 4, ("2x<tp2,pp2>", "1x<tp4>+1x<pp2>+2x<1>", "8x<1>", "4x<pp2>", "2x<cp2>+2x<tp2>", "2x<tp4>")
    ),
}
NUM_STEPS = 6
# Ranks that wait for each other for this long are in a deadlock. The limit leaves time for the other tests of
# `make first-gpu`.
CUDA_SECONDS = 90.0
# Where each launch waits for its end, ranks that share a device take turns at every launch.
LAUNCH_WAITS_SECONDS = 400.0
ADVERSARIES = {
    "launch-waits": {"CUDA_LAUNCH_BLOCKING": "1"},
    "one-queue": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
    "launch-order": {"NCCL_LAUNCH_ORDER_IMPLICIT": "1"},
    # As many as a worker admits on a device of 132 multiprocessors, where four kernels may wait at once.
    "many-blocks": {"NCCL_MAX_CTAS": "24"},
    "lazy-kernels": {"CUDA_MODULE_LOADING": "LAZY"},
    "no-cache": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    "sanitizer": {"TORCH_CUDA_SANITIZER": "1"},
}
# Relative distances of losses, of the loss after the last update, of gradients and of parameters.
TOLERANCES = {torch.float64: (1e-10, 1e-10, 1e-10, 1e-10), torch.bfloat16: (5e-3, 5e-3, 0.1, 1e-3)}
# AdamW amplifies the rounding of gradients near 0; by plain descent all steps are compared in bfloat16 too.
OPTIMIZERS = {
    torch.float64: OPTIMIZER,
    torch.bfloat16: OptimizerConfig(name="sgd", learning_rate=0.02, momentum=0.0, clip_norm=0),
}
on_cpu_and_cuda = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_cuda)])


@pytest.fixture(scope="module")
def alone() -> dict[torch.dtype, Trained]:
    """One rank in float64, by the optimizer of each dtype."""
    arguments = ("cpu", CONFIG, ["1x<1>"] * NUM_STEPS, LENGTHS, torch.float64)
    return {
        dtype: run_ranks(1, train, *arguments, optimizer, device="cpu")[0]
        for dtype, optimizer in OPTIMIZERS.items()
    }


def assert_equals(trained: Trained, alone: dict[torch.dtype, Trained], dtype: torch.dtype) -> None:
    of_losses, of_evaluated, of_gradients, of_parameters = TOLERANCES[dtype]
    reference = alone[dtype]
    assert trained.losses == pytest.approx(reference.losses, rel=of_losses)
    assert trained.evaluated == pytest.approx(reference.evaluated, rel=of_evaluated)
    assert reference.evaluated < 0.9 * reference.losses[0]
    for values, expected in zip(trained.gradients, reference.gradients, strict=True):
        assert distance(values, expected, dtype) <= of_gradients
    assert distance(trained.parameters, reference.parameters, dtype) <= of_parameters


def distance(values: dict[str, Tensor], expected: dict[str, Tensor], dtype: torch.dtype) -> float:
    """Give the largest relative distance of any parameter; in bfloat16 that of all parameters together.

    A bias of keys, whose gradient is nearly 0, is mostly rounding there.
    """
    assert values.keys() == expected.keys()
    pairs = [(values[name].double(), value) for name, value in expected.items()]
    if dtype != torch.float64:
        whole = [torch.cat([one.flatten() for one in side]) for side in zip(*pairs, strict=True)]
        pairs = [(whole[0], whole[1])]
    return max(float((value - wanted).norm() / wanted.norm()) for value, wanted in pairs)


def assert_world_equals_one_rank(
    world: World,
    device: DeviceKind,
    dtype: torch.dtype,
    alone: dict[torch.dtype, Trained],
    **environment: str,
) -> None:
    seconds = LAUNCH_WAITS_SECONDS if "CUDA_LAUNCH_BLOCKING" in environment else CUDA_SECONDS
    by_rank = run_ranks(
        world.ranks,
        train,
        device,
        CONFIG,
        world.strategies,
        LENGTHS,
        dtype,
        OPTIMIZERS[dtype],
        device=device,
        ranks_per_node=world.node,
        environment=environment,
        timeout_seconds=TIMEOUT_SECONDS if device == "cpu" else seconds / CUDA_PATIENCE,
    )
    assert len({tuple(trained.losses) for trained in by_rank}) == 1
    assert_equals(by_rank[0], alone, dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=["float64", "bfloat16"])
@pytest.mark.parametrize("world", WORLDS)
@on_cpu_and_cuda
def test_every_degree_equals_one_rank(
    device: DeviceKind, world: str, dtype: torch.dtype, alone: dict[torch.dtype, Trained]
) -> None:
    assert len(WORLDS[world].strategies) == NUM_STEPS
    assert_world_equals_one_rank(WORLDS[world], device, dtype, alone)


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=on_cuda)])
def test_compiled_operations_equal_one_rank(device: DeviceKind, alone: dict[torch.dtype, Trained]) -> None:
    ranks, node, strategies = WORLDS["2-ranks"]
    arguments = (device, CONFIG, strategies, LENGTHS, torch.float64)
    by_rank = run_ranks(ranks, train_compiled, *arguments, device=device, ranks_per_node=node)
    assert_equals(by_rank[0], alone, torch.float64)


# Ranks that share a device take turns at every barrier: four of them took more than 90 s.
@pytest.mark.parametrize(
    ("device", "world", "least_rounds"),
    [("cpu", "4-ranks", 200), pytest.param("cuda", "2-ranks", 150, marks=on_cuda)],
)
def test_tensor_ranks_that_share_memory_equal_one_rank(
    device: DeviceKind, world: str, least_rounds: int, alone: dict[torch.dtype, Trained], tmp_path: Path
) -> None:
    ranks, node, strategies = WORLDS[world]
    arguments = (device, CONFIG, strategies, LENGTHS, torch.float64)
    by_rank = run_ranks(
        ranks, train_through_buffers, tmp_path, *arguments, device=device, ranks_per_node=node
    )
    assert_equals(by_rank[0][0], alone, torch.float64)
    # Every rank is in a tensor group, in steps with several rounds of each collective.
    assert min(rounds for _, rounds in by_rank) > least_rounds


@pytest.mark.parametrize("world", ["2-ranks", "4-ranks", "8-ranks"])
@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("device", [pytest.param("cuda", marks=on_cuda)])
def test_no_adversary_stops_the_ranks_or_changes_their_sums(
    device: DeviceKind, adversary: str, world: str, alone: dict[torch.dtype, Trained]
) -> None:
    assert_world_equals_one_rank(WORLDS[world], device, torch.float64, alone, **ADVERSARIES[adversary])


@pytest.mark.parametrize("world", ["2-ranks", "4-ranks"])
@pytest.mark.parametrize("device", [pytest.param("cuda", marks=on_cuda)])
def test_the_host_does_not_wait_for_the_device_within_a_pipeline(device: DeviceKind, world: str) -> None:
    ranks, node, strategies = WORLDS[world]
    arguments = (device, CONFIG, strategies, LENGTHS, torch.float64)
    finite = run_ranks(ranks, train_without_waiting, *arguments, device=device, ranks_per_node=node)
    assert finite == [True] * ranks


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=on_cuda)])
def test_a_host_that_waits_within_a_pipeline_is_found(device: DeviceKind) -> None:
    arguments = (device, CONFIG, ("2x<1>",), LENGTHS, torch.float64)
    with pytest.raises(RankError, match="synchronizing CUDA operation"):
        run_ranks(2, train_without_waiting, *arguments, planted_wait, device=device)
