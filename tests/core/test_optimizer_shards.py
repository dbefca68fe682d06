"""Optimizer shards keep their parameter table, and refuse ranks of no shard."""

from collections.abc import Callable

import pytest

from helpers import refused
from hydraulis import Cluster, LayerSplit, Parameter, ParameterTable
from hydraulis._core import OptimizerShards


@pytest.mark.parametrize("call", [OptimizerShards.node_of, OptimizerShards.rail_of])
def test_a_rank_without_a_shard_is_refused(call: Callable[[OptimizerShards, int], list[int]]) -> None:
    names = ["embedding", "layer", "head"]
    table = ParameterTable(
        [
            Parameter(name, rows=8, row_elements=4, units=8, layer_groups=[group])
            for group, name in enumerate(names)
        ],
        LayerSplit(1),
    )
    shards = OptimizerShards(table, Cluster(gpus=8, gpus_per_node=4), [])
    assert call(shards, 7)
    assert sum(sum(shards.shard_elements(rank)) for rank in range(8)) == 96
    for of_rank in (lambda: call(shards, 8), lambda: shards.slices(8), lambda: shards.shard_elements(8)):
        with refused("plan_mismatch", "rank 8"):
            of_rank()
