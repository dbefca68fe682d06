"""The bench of one rank among many in its short form: a step, and one call that makes groups per degree."""

from benches.loading import load_script
from hydraulis import Cluster
from hydraulis._core import OptimizerShards
from hydraulis.runtime.state.parameters import ModelParameters

RANKS = 128


def test_one_rank_of_many_takes_a_step() -> None:
    bench = load_script("scale")
    figures = bench.measure(RANKS, 1.0, 1)
    assert (figures.ranks, figures.sequences) == (RANKS, RANKS)
    # The groups inside nodes and those between them, and the tensor groups of 2, 4 and 8 ranks.
    assert figures.group_calls == {"split_group": 5}
    parameters = ModelParameters.from_config(bench.SEVEN_B)
    shards = OptimizerShards(parameters.table, Cluster(gpus=RANKS, gpus_per_node=8), [])
    assert figures.values == sum(shards.shard_elements(0))
    assert figures.step_ms > 0
    assert figures.plan_bytes > 1000
