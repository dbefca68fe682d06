"""The estimate of context degrees for each micro-batch: blocks keep limits and hold every sequence once."""

from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benches.loading import load_script
from hydraulis import Cluster, CostProfile, Planner, Scheme
from hydraulis.planner import load_profile

CLUSTER = Cluster(gpus=64, gpus_per_node=8)
# One sequence that needs 64 GPUs, and short ones.
LONG = np.array([100_000] + [4_000] * 40 + [500] * 800)


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return load_script("dynamic_context")


@pytest.fixture(scope="module")
def profile() -> CostProfile:
    return load_profile("llama-32b-a800,cp")


def test_costs_are_those_of_the_profile(bench: ModuleType, profile: CostProfile) -> None:
    scheme = Scheme("<tp4,cp2>")
    costs = bench.Costs.of(profile, scheme, CLUSTER)
    assert costs.cap == profile.cap_tokens(scheme, CLUSTER)
    block = bench.Block(0, 2, 4, costs, [[9_000, 300], [7_000]])
    expected = profile.micro_batch_ms(scheme, [9_000, 300]) + profile.micro_batch_ms(scheme, [7_000])
    assert block.ms == pytest.approx(expected)
    assert bench.Costs.of(profile, Scheme("<tp2,cp2>"), CLUSTER) is None


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30_000), min_size=1, max_size=40),
    limit=st.floats(500, 6_000),
    number=st.integers(1, 11),
)
def test_blocks_end_within_the_limit(lengths: list[int], limit: float, number: int) -> None:
    bench, profile = load_script("dynamic_context"), load_profile("llama-32b-a800,cp")
    parts, first = bench.powers_of_two(number), 0
    assert sum(parts) == number
    blocks = []
    for ranks in parts:
        blocks += bench.tree(profile, CLUSTER, 4, first, ranks)
        first += ranks
    if not bench.place(lengths, blocks, limit):
        return
    placed = [tokens for block in blocks for packed in block.micro_batches for tokens in packed]
    assert sorted(placed) == sorted(lengths)
    assert all(sum(packed) <= block.costs.cap for block in blocks for packed in block.micro_batches)
    # A rank runs the micro-batches of every block that it is in, one after another.
    for rank in range(number):
        own = [block for block in blocks if block.first <= rank < block.first + block.degree]
        assert len({block.degree for block in own}) == len(own)
        assert sum(block.ms for block in own) <= limit * (1 + 1e-9)


def test_ranks_that_one_sequence_needs_divide_after_it(bench: ModuleType, profile: CostProfile) -> None:
    plan = Planner(profile, CLUSTER, strategies="search").plan(LONG)
    assert str(plan.strategy) == "1x<tp4,cp16>"
    found = bench.estimate(profile, CLUSTER, LONG)
    assert found["plan"] == plan.iteration_ms
    assert found["blocks"] < 0.97 * found["plan"]
    assert found["fixed"] == pytest.approx(found["plan"], rel=0.01)
    # The long sequence alone bounds every plan.
    assert found["blocks"] > profile.micro_batch_ms(Scheme("<tp4,cp16>"), [100_000])


def test_pipelines_give_their_shortest_sequences(bench: ModuleType, profile: CostProfile) -> None:
    batch = np.array([32_000, 20_000] + [3_000] * 60 + [300] * 900)
    plan = Planner(profile, CLUSTER, strategies=["1x<tp4,cp8>+8x<tp2,pp2>"]).plan(batch)
    regrouping = bench.Regrouping(profile, batch, plan, cuts=True)
    assert len(regrouping.pipelines) == 8
    kept = [tokens for pipeline in regrouping.pipelines for tokens in pipeline]
    assert sorted(regrouping.lengths + kept) == sorted(batch.tolist())
    ends = [replica.predicted_ms for replica in plan.replicas if replica.scheme.pp > 1]
    placed = []
    for limit in (plan.iteration_ms * 1.02, max(ends) * 0.995):
        assert regrouping._fits(limit)
        packs = [packed for block in regrouping.blocks for packed in block.micro_batches]
        placed.append(sorted((tokens for packed in packs for tokens in packed), reverse=True))
    assert placed[0] == sorted(regrouping.lengths, reverse=True)
    # Each pipeline that would end later frees at least one of its shortest sequences.
    late = sum(end > max(ends) * 0.995 for end in ends)
    assert len(placed[1]) >= len(placed[0]) + late
    assert placed[1].count(3_000) == placed[0].count(3_000)


def test_the_report_states_mean_and_greatest_gain(bench: ModuleType) -> None:
    text = bench.report([{"plan": 100.0, "blocks": 99.0}, {"plan": 300.0, "blocks": 285.0}])
    assert "blocks gain 4.00%, at most 5.00% in a batch" in text
