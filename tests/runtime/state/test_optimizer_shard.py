"""Optimizer shards: the same model on any number of ranks, and AdamW with its warm-up."""

import pytest
import torch
from torch import Tensor

from hydraulis.runtime.state.parameters import ElementCount, ModelParameters
from hydraulis.runtime.state.state_bytes import StateBytes, pinned_bytes
from ranks import run_ranks
from runtime.state.optimizer_shard_workers import ShardReport, gather_and_step, master_dtypes
from runtime.tiny import OPTIMIZER, SEED
from small_model import initial_value, small_config

NUM_STEPS = 6


@pytest.fixture(scope="module")
def reports() -> dict[int, list[ShardReport]]:
    """By the number of ranks."""
    return {n: run_ranks(n, gather_and_step, torch.float64, NUM_STEPS) for n in (1, 2, 3, 4)}


def initial_values() -> dict[str, Tensor]:
    config = small_config()
    shapes = ModelParameters.from_config(config).shapes
    return {name: initial_value(name, config, SEED, torch.float64) for name in shapes}


def assert_same(values: dict[str, Tensor] | None, expected: dict[str, Tensor]) -> None:
    assert values is not None
    assert values.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(values[name], value), name


def test_initial_values_do_not_depend_on_the_number_of_ranks(reports: dict[int, list[ShardReport]]) -> None:
    expected = initial_values()
    for number, by_rank in reports.items():
        assert_same(by_rank[0].initial, expected)
        assert all(report.initial is None for report in by_rank[1:]), number


def test_gathered_parameters_may_be_saved(reports: dict[int, list[ShardReport]]) -> None:
    gathered = reports[3][0].initial
    assert gathered is not None
    assert all(value.is_contiguous() for value in gathered.values())
    storages = {value.untyped_storage().data_ptr() for value in gathered.values()}
    assert len(storages) == len(gathered)


def test_gradients_are_gathered_like_parameters(reports: dict[int, list[ShardReport]]) -> None:
    expected = {name: 2 * value for name, value in initial_values().items()}
    for by_rank in reports.values():
        assert_same(by_rank[0].gradient, expected)


def test_ranks_share_every_bucket_evenly(reports: dict[int, list[ShardReport]]) -> None:
    num_buckets = small_config().num_hidden_layers + 2
    total = sum(value.numel() for value in initial_values().values())
    for by_rank in reports.values():
        shares = [report.share for report in by_rank]
        assert sum(shares) == total
        assert all(report.layout == shares for report in by_rank)
        assert max(shares) - min(shares) <= num_buckets


def test_steps_equal_adamw_on_the_whole_model_with_a_linear_warmup(
    reports: dict[int, list[ShardReport]],
) -> None:
    values = initial_values()
    parameters = {name: torch.nn.Parameter(value.clone()) for name, value in values.items()}
    adamw = torch.optim.AdamW(
        parameters.values(), betas=OPTIMIZER.betas, eps=OPTIMIZER.eps, weight_decay=OPTIMIZER.weight_decay
    )
    for step in range(NUM_STEPS):
        # The fourth of four warm-up steps is the first at the full rate.
        adamw.param_groups[0]["lr"] = 1e-2 * [0.25, 0.5, 0.75, 1.0, 1.0, 1.0][step]
        for name, parameter in parameters.items():
            parameter.grad = 2 * values[name]
        adamw.step()
        for by_rank in reports.values():
            stepped = by_rank[0].stepped[step]
            assert stepped is not None
            for name, parameter in parameters.items():
                torch.testing.assert_close(stepped[name], parameter.detach(), rtol=1e-12, atol=1e-14)


def test_steps_do_not_depend_on_the_number_of_ranks(reports: dict[int, list[ShardReport]]) -> None:
    alone = reports[1][0].stepped[-1]
    assert alone is not None
    for by_rank in reports.values():
        stepped = by_rank[0].stepped[-1]
        assert stepped is not None
        for name, value in alone.items():
            torch.testing.assert_close(stepped[name], value, rtol=1e-14, atol=1e-16)


def test_the_master_is_wide_whatever_the_model_computes_in() -> None:
    assert run_ranks(1, master_dtypes) == [[torch.float32, torch.float32, torch.float64]]


def test_pinned_memory_is_a_power_of_two() -> None:
    sizes = (0, 1, 2, 3, (1 << 33) - 1, 1 << 33, (1 << 33) + 1)
    assert [pinned_bytes(size) for size in sizes] == [0, 1, 2, 4, 1 << 33, 1 << 33, 1 << 34]


def test_each_buffer_of_a_host_copy_is_rounded_up_alone() -> None:
    # Parameters and moments in float32, frozen parameters in bfloat16.
    for trained, frozen, expected in (
        (1 << 10, 1 << 10, 3 * (4 << 10) + (2 << 10)),
        ((1 << 10) + 1, (1 << 10) + 1, 3 * (8 << 10) + (4 << 10)),
        ((1 << 10) + 1, 0, 3 * (8 << 10)),
    ):
        assert StateBytes.of(torch.bfloat16, 2).host_copy(ElementCount(trained, frozen)) == expected
