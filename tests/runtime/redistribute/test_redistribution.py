"""Every local shard gets its slices of the master parameters, and every owner the sum of all gradients."""

import pytest
import torch

from hydraulis.config.kinds import ShardingKind
from ranks import run_ranks
from runtime.redistribute.redistribution_workers import (
    Pass,
    passes,
    staging_of_one_rank,
    sum_of_large_and_small,
    travelled_in_bfloat16,
)
from small_model import small_config

# Tied embeddings have two holders in a pipeline; on 3 ranks one is idle under <pp2>.
FOUR = ["4x<1>", "1x<tp2>+2x<1>", "2x<tp2>", "1x<tp4>", "1x<pp3>+1x<1>"]
TIED = ["1x<tp2,pp2>", "2x<pp2>", "1x<tp2>+1x<pp2>", "1x<tp4>"]
# Ranks, ranks of a node, strategies, and whether embeddings are tied.
CASES = {
    "untied on 4": (4, 4, FOUR, False),
    "tied on 4": (4, 4, TIED, True),
    "untied on 3": (3, 3, ["1x<tp2>+1x<1>", "1x<pp3>", "1x<pp2>", "3x<1>"], False),
    "untied on 2 nodes": (4, 2, FOUR, False),
    "tied on 2 nodes": (4, 2, TIED, True),
    "<tp4> alone on 2 nodes": (4, 2, ["1x<tp4>"] * 4, False),
    "tied, <pp2> alone on 4": (4, 4, ["2x<pp2>", "1x<pp2>"], True),
    "tied, <tp2,pp2> alone on 2 nodes": (4, 2, ["1x<tp2,pp2>"] * 4, True),
    # Of each parameter a narrow rank holds what lives on several others: it lies in no order of theirs.
    "tied, degrees in each other on 4": (4, 4, ["1x<tp2>+2x<1>", "1x<tp4>", "4x<1>", "2x<tp2>"], True),
    "untied, degrees in each other on 2 nodes": (4, 2, ["1x<tp2>+2x<1>", "4x<1>", "2x<tp2>"], False),
    "untied on 3 nodes of one rank": (3, 1, ["1x<pp2>", "3x<1>"] * 2, False),
}
LENGTHS = (20, 20, 18, 9, 7, 3, 2)


@pytest.fixture(scope="module", params=CASES)
def by_rank(request: pytest.FixtureRequest) -> list[list[Pass]]:
    world_size, node, strategies, tied = CASES[request.param]
    # The whole round twice, so that the first strategy follows the last.
    config = small_config(tie_word_embeddings=tied)
    result: list[list[Pass]] = run_ranks(
        world_size, passes, config, strategies * 2, LENGTHS, ranks_per_node=node
    )
    return result


@pytest.mark.devices
def test_every_rank_of_a_replica_group_has_its_slice_of_the_master(by_rank: list[list[Pass]]) -> None:
    for number, first in enumerate(by_rank[0]):
        held = set()
        for one in (rank[number] for rank in by_rank):
            for name, (start, values) in one.parameters.items():
                assert torch.equal(values, first.master[name][start : start + len(values)]), name
                held.add(name)
        assert held == set(first.master)


@pytest.mark.devices
def test_the_owner_has_the_sum_over_the_replica_group(by_rank: list[list[Pass]]) -> None:
    for number, first in enumerate(by_rank[0]):
        expected = {name: torch.zeros_like(value) for name, value in first.master.items()}
        for one in (rank[number] for rank in by_rank):
            for name, (start, values) in one.gradients.items():
                expected[name][start : start + len(values)] += values
        for name, value in expected.items():
            assert torch.equal(first.gathered[name], value), name
            assert value.abs().max() > 0


@pytest.mark.devices
def test_traffic_between_nodes_equals_that_of_the_plan(
    by_rank: list[list[Pass]], request: pytest.FixtureRequest
) -> None:
    for number, first in enumerate(by_rank[0]):
        assert sum(rank[number].crossing for rank in by_rank) == first.planned
    several = "node" in request.node.callspec.id
    assert any(one.planned for one in by_rank[0]) == several


def test_no_strategy_allocates(by_rank: list[list[Pass]]) -> None:
    for one in by_rank:
        assert one[0].reserved[-1] > 0
        assert all(step.staging == step.reserved == one[0].reserved for step in one)


@pytest.mark.devices
@pytest.mark.parametrize("frozen", [(), ("model.layers.0.*", "*mlp*")])
@pytest.mark.parametrize("sharding", ["none", "gradients", "parameters"])
def test_the_only_rank_stages_nothing(sharding: ShardingKind, frozen: tuple[str, ...]) -> None:
    assert run_ranks(1, staging_of_one_rank, sharding, frozen) == [0]


@pytest.mark.devices
def test_contributions_are_added_in_rank_order() -> None:
    assert run_ranks(3, sum_of_large_and_small) == [(1.0, 1.0)] * 3


@pytest.mark.devices
def test_parameters_move_in_the_models_dtype_and_gradients_in_that_of_their_sums() -> None:
    assert run_ranks(2, travelled_in_bfloat16) == [(True, True, {torch.bfloat16}, {torch.float32})] * 2
