"""Many groups by few splits: one for each kind and degree, however many ranks there are."""

from datetime import timedelta

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from hydraulis import Cluster, Scheme
from hydraulis._core import Position
from hydraulis.parallel.groups import aligned_groups
from hydraulis.parallel.splits import can_split, disjoint_families
from parallel.splits_workers import split_sums, splits_of_aligned_groups
from ranks import run_ranks


def test_groups_of_one_size_that_do_not_overlap_are_a_family() -> None:
    sets = [(0, 1), (2, 3), (0, 2), (1, 3), (0, 1, 2, 3), (4, 5)]
    assert disjoint_families(sets) == [[(0, 1), (2, 3), (4, 5)], [(0, 2), (1, 3)], [(0, 1, 2, 3)]]
    assert disjoint_families(reversed([*sets, *sets])) == disjoint_families(sets)
    assert disjoint_families([]) == []


def test_each_rank_gets_its_group_of_each_split() -> None:
    sets = [[0, 1], [2, 3], [1, 2], [0, 1, 3]]
    by_rank = run_ranks(4, split_sums, sets)
    splits = [[[0, 1], [2, 3]], [[1, 2]], [[0, 1, 3]]]
    assert [made for made, _ in by_rank] == [splits] * 4
    assert [sums for _, sums in by_rank] == [[1, 4], [1, 3, 4], [5, 3], [5, 4]]


@pytest.mark.parametrize("ranks", [64, 1024])
def test_all_groups_of_a_kind_and_degree_are_one_split(ranks: int) -> None:
    dist.init_process_group(
        "fake", store=FakeStore(), rank=ranks // 2, world_size=ranks, timeout=timedelta(seconds=60)
    )
    degrees = [(1, 1), (2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (2, 2)]
    try:
        made = splits_of_aligned_groups(degrees, Cluster(gpus=ranks, gpus_per_node=8))
    finally:
        dist.destroy_process_group()
    # Tensor groups of 2, 4 and 8 ranks, context groups of <tp2,cp2> and of <tp4,cp2>.
    assert [(len(split), len(split[0])) for split in made] == [
        (ranks // 2, 2),
        (ranks // 4, 4),
        (ranks // 8, 8),
        (ranks // 2, 2),
        (ranks // 2, 2),
    ]


@pytest.mark.parametrize(
    ("scheme", "start"), [("<tp2,cp2>", 4), ("<tp4>", 12), ("<cp4>", 8), ("<tp2,cp8>", 16)]
)
def test_aligned_groups_are_those_of_stages(scheme: str, start: int) -> None:
    degrees = Scheme(scheme)
    tensor, context = aligned_groups([(degrees.tp, degrees.cp)], Cluster(gpus=32, gpus_per_node=8))
    for offset, position in enumerate(Position.all(degrees)):
        assert position.tensor_group(start + offset) in [list(ranks) for ranks in tensor]
        assert position.context_group(start + offset) in [list(ranks) for ranks in context]
    for groups in (tensor, context):
        assert sorted(rank for ranks in groups for rank in ranks) == list(range(32))


def test_only_nccl_with_a_bound_device_is_split() -> None:
    assert not can_split("gloo")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2, timeout=timedelta(seconds=60))
    try:
        assert not can_split("nccl")
    finally:
        dist.destroy_process_group()
