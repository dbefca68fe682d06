"""The comparison of layer plans with uniform checkpointing: the planner's figures, and where nothing fits."""

from itertools import pairwise
from types import ModuleType

import pytest

from benches.loading import load_script
from hydraulis import Cluster, CostProfile, Planner

CLUSTER = Cluster(gpus=8, gpus_per_node=8)


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return load_script("longest_sequences")


def test_a_row_has_the_longest_sequences_and_times_of_the_planner(bench: ModuleType) -> None:
    batches = bench.drawn(1, 20_000)
    row = bench.compare(bench.shape_of("7B"), 8, "A100-40GB", batches)
    profile = CostProfile.analytic(bench.shape_of("7B"), CLUSTER, "A100-40GB", checkpointing=["full"])
    planner = Planner(profile, CLUSTER, strategies="search")
    assert row.longest["full"] == planner.longest_admitted
    longest = list(row.longest.values())
    assert list(row.longest) == list(bench.LONGEST_OF)
    assert all(one < other for one, other in pairwise(longest))
    # The record says this of the same devices.
    assert row.longest["sharded"] == pytest.approx(3.2 * row.longest["full"], rel=0.02)
    assert row.iteration_ms["full"] == planner.plan(batches[0]).iteration_ms
    shown = bench.line("7B", "8 x 40 GB", row)
    assert f"{row.longest['sharded']:,}" in shown
    assert f"{row.iteration_ms['layer plans']:,.0f} ms" in shown


def test_kinds_that_do_not_admit_the_batches_have_no_time(bench: ModuleType) -> None:
    batches = bench.drawn(1, 20_000)
    batches[0][0] = 30_000
    row = bench.compare(bench.shape_of("7B"), 8, "A100-40GB", batches)
    assert row.longest["selective"] < 30_000
    assert set(row.iteration_ms) == {"full", "kinds", "layer plans"}


def test_a_model_that_does_not_fit_has_no_figures(bench: ModuleType) -> None:
    batches = bench.drawn(1, 20_000)
    row = bench.compare(bench.shape_of("70B"), 8, "A100-80GB", batches)
    assert set(row.longest.values()) == {0}
    assert row.iteration_ms == {}
    assert bench.line("70B", "8 x 80 GB", row).count(" - ") == 9


def test_the_larger_model_is_llama_2_70b(bench: ModuleType) -> None:
    # 68,976,648,192 is the number of elements of the published weights.
    assert bench.shape_of("70B").parameters == 68_976_648_192
