"""Collectives in host memory: the same results in one group and in two levels of nodes."""

from typing import Any

import pytest
import torch

from hydraulis.runtime.ranks.device import backend_of
from hydraulis.runtime.ranks.host import has_levels
from ranks import run_ranks
from runtime.ranks.host_workers import (
    results_with_and_without_levels,
    results_without_world_in_host_memory,
    temporary_groups,
)


def expected(rank: int, size: int) -> dict[str, Any]:
    return {
        "sum": [size * (size + 1) // 2, -size * (size - 1) // 2],
        "most": [size, 0],
        "largest": [(1 << 60) + size - 1, 0.1],
        "least": [1 - size, 0.1],
        "broadcast": [3],
        "gather": [[one, 2 * one] for one in range(size)] if rank == 0 else None,
        "objects": [{"rank": one} for one in range(size)] if rank == 0 else None,
        "all objects": [f"rank {one}" for one in range(size)],
        "ranks": list(range(1, size, 3)),
        "text": "x" * 100_000,
    }


@pytest.mark.parametrize(("size", "node"), [(6, 2), (6, 3), (8, 4), (4, 4), (3, 2)])
def test_levels_change_no_result(size: int, node: int) -> None:
    for rank, (flat, levels) in enumerate(run_ranks(size, results_with_and_without_levels, node)):
        assert flat[0] == levels[0] == expected(rank, size)
        # In nodes nothing goes over all ranks at once.
        assert flat[1].total() > 0
        assert bool(levels[1]) != has_levels(size, node)


def test_levels_need_no_backend_for_host_memory_over_all_ranks() -> None:
    for rank, found in enumerate(run_ranks(4, results_without_world_in_host_memory, 2)):
        assert found == expected(rank, 4)


def test_a_temporary_group_is_refused_where_ranks_would_name_it_differently() -> None:
    for total, error in run_ranks(4, temporary_groups, 2, ranks_per_node=2, timeout_seconds=30):
        assert total == 4.0
        assert "different numbers of groups" in error


def test_nodes_of_one_rank_and_uneven_nodes_have_one_level() -> None:
    assert has_levels(16, 8)
    assert not any(has_levels(*one) for one in ((8, 8), (8, 1), (12, 8), (1, 1)))


def test_on_several_nodes_cuda_ranks_have_no_gloo_over_all_ranks() -> None:
    cuda, cpu = torch.device("cuda", 0), torch.device("cpu")
    assert backend_of(cuda, 16, has_host_groups=True) == "cuda:nccl"
    assert backend_of(cuda, 8, has_host_groups=False) == "cpu:gloo,cuda:nccl"
    # CPU ranks also exchange the model's tensors in host memory.
    assert backend_of(cpu, 16, has_host_groups=True) == "gloo"
