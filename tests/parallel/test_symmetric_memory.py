"""Collectives through symmetric buffers: equal to the plain path, without races, mapped in one order."""

from itertools import combinations
from pathlib import Path

import pytest
import torch

from helpers import refused
from hydraulis import Cluster
from hydraulis.parallel.symmetric_memory import SymmetricBuffer, require_symmetric_memory
from parallel.symmetric_memory_workers import Access, accesses, both_ways, mapped_groups
from ranks import kind_of_ranks, run_ranks

CUDA = torch.device("cuda", 0)
WIDTH = 4
# Tokens of three ranks: one round, several of equal and of unequal sizes, and none.
TOKENS = (3, 24, 33, 0, 6)


def tensors(dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.randn(tokens, WIDTH, dtype=torch.float64).to(dtype) for tokens in TOKENS]


# Halves of four tokens in float64: a sum takes one token of each rank in a round, a gather four.
@pytest.mark.devices
@pytest.mark.parametrize("num_bytes", [2 * 4 * WIDTH * 8, 1 << 20], ids=["many-rounds", "one-round"])
def test_the_buffer_exchanges_as_the_group_does(num_bytes: int, tmp_path: Path) -> None:
    dtypes = (torch.float64, torch.float32, torch.bfloat16)
    drawn = [tensor for dtype in dtypes for tensor in tensors(dtype)]
    for pairs in run_ranks(3, both_ways, drawn, tmp_path, num_bytes):
        assert len(pairs) == 4 * len(drawn)
        for through, plain in pairs:
            if kind_of_ranks() == "cpu":
                assert torch.equal(through, plain)
            torch.testing.assert_close(through, plain)


def races(by_rank: list[list[Access]]) -> int:
    """Count pairs of accesses of two ranks to common bytes, a write among them, without a barrier between."""
    return sum(
        one.passed == other.passed
        and one.owner == other.owner
        and (one.writes or other.writes)
        and one.first < other.behind
        and other.first < one.behind
        for left, right in combinations(by_rank, 2)
        for one in left
        for other in right
    )


@pytest.mark.parametrize("in_turn", [True, False])
def test_a_barrier_is_between_a_write_and_another_ranks_access(tmp_path: Path, *, in_turn: bool) -> None:
    arguments = (tensors(torch.float64)[:3], tmp_path, 2 * 4 * WIDTH * 8)
    by_rank = run_ranks(3, accesses, *arguments, in_turn)
    assert min(map(len, by_rank)) > 50
    # Rounds that use one half alone race: the check can fail.
    assert (races(by_rank) == 0) is in_turn


@pytest.mark.parametrize(
    ("gpus", "node", "mapped"),
    [
        (4, 4, {0: [(0, 1), (0, 1, 2, 3)], 3: [(2, 3), (0, 1, 2, 3)]}),
        # A group on two nodes shares no memory.
        (4, 2, {0: [(0, 1)], 3: [(2, 3)]}),
        # Three ranks would leave one without a partner.
        (3, 3, {0: [], 2: []}),
    ],
)
def test_every_rank_maps_its_groups_in_one_order(
    gpus: int, node: int, mapped: dict[int, list[tuple[int, ...]]], tmp_path: Path
) -> None:
    by_rank = run_ranks(gpus, mapped_groups, [4, 1, 2, 4], Cluster(gpus, node), tmp_path)
    assert {rank: by_rank[rank] for rank in mapped} == mapped
    # Torch numbers the mappings of a process, and the ranks of a group meet by the number.
    assert len({tuple(map(len, ranks)) for ranks in by_rank}) == 1


def test_a_token_larger_than_the_buffer_is_refused() -> None:
    buffer = SymmetricBuffer([torch.zeros(64, dtype=torch.uint8)] * 2, 0, lambda: None)
    with refused("scheme_model_mismatch", "2 x 24 bytes", "64 bytes", "train.symmetric_memory = false"):
        buffer.reduce_scatter(torch.zeros(4, 3, dtype=torch.float64), torch.sum)


@pytest.mark.parametrize(
    ("device", "ranks", "devices", "said"),
    [
        (torch.device("cpu"), 1, 0, "the ranks' device is the CPU"),
        (CUDA, 8, 8, "device 0 does not reach device 5 of this node"),
        (CUDA, 4, 8, ""),
        # Eight ranks share one device.
        (CUDA, 8, 1, ""),
    ],
)
def test_devices_that_do_not_reach_each_other_are_refused(
    device: torch.device, ranks: int, devices: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda own, peer: own.index != peer != 5)
    if said:
        with refused("device_missing", said, "train.symmetric_memory = false"):
            require_symmetric_memory(device, ranks)
    else:
        require_symmetric_memory(device, ranks)
