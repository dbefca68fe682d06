"""The best plan for sequences of one length."""

import pytest

from hydraulis import Cluster, InfeasibleError, InvalidInputError, Planner, Scheme
from hydraulis._core import uniform_plans
from hydraulis.config.kinds import MemoryRule
from hydraulis.planner import load_profile
from hydraulis.planner.tune import tune
from profiles import made_up_profile

PROFILE = load_profile("llama-32b-a800")
CLUSTER = Cluster(gpus=64, gpus_per_node=8)


@pytest.mark.parametrize("length", [1_000, 6_000, 30_000])
@pytest.mark.parametrize("memory", ["per_micro_batch", "in_flight"])
def test_no_scheme_for_all_replicas_is_faster(length: int, memory: MemoryRule) -> None:
    batches = [7, 64]
    for tuned, sequences in zip(tune(PROFILE, CLUSTER, length, batches, memory=memory), batches, strict=True):
        assert (tuned.sequences, tuned.length, len(tuned.plan.lengths)) == (sequences, length, sequences)
        planner = Planner(PROFILE, CLUSTER, strategies=[tuned.plan.strategy], memory=memory)
        assert planner.check(tuned.plan, [length] * sequences) == []
        uniform = uniform_plans(PROFILE, CLUSTER, length, sequences, memory=memory)
        assert len(uniform) >= 1
        assert tuned.plan.step_ms <= uniform[0][2] * (1 + 1e-9)
        assert tuned.tokens_per_s == pytest.approx(sequences * length / tuned.plan.step_ms * 1e3)
        assert len({str(replica.scheme) for replica in tuned.plan.replicas}) == 1


def test_predicted_times_are_those_of_the_planner() -> None:
    for strategy, micro_batches, ms in uniform_plans(PROFILE, CLUSTER, 4_000, 64):
        plan = Planner(PROFILE, CLUSTER, strategies=[strategy]).plan([4_000] * 64)
        assert plan.iteration_ms <= ms * (1 + 1e-9), strategy
        replicas = int(strategy.partition("x")[0])
        assert sum(micro_batches) == -(-64 // replicas)


def test_a_larger_batch_has_no_fewer_tokens_per_second_where_replicas_divide_it() -> None:
    rates = [tuned.tokens_per_s for tuned in tune(PROFILE, CLUSTER, 4_000, [64, 128, 256])]
    assert rates == sorted(rates)


def test_layers_of_two_kinds_are_as_many_as_memory_asks_for() -> None:
    cluster = Cluster(gpus=8, gpus_per_node=8)
    profile = load_profile("analytic:llama-7b-a800:A100-40GB,none,selective,full")
    (tuned,) = tune(profile, cluster, 32_768, [16])
    fewest = uniform_plans(profile, cluster, 32_768, 16)[0][2]
    assert tuned.plan.iteration_ms < 0.99 * fewest
    (scheme,) = {replica.scheme for replica in tuned.plan.replicas}
    assert scheme.planned_layers == 32
    # No number of layers between any two kinds is faster.
    dense = profile.with_layer_plans(500)
    best = uniform_plans(dense, cluster, 32_768, 16)[0]
    assert tuned.plan.iteration_ms <= best[2] * (1 + 1e-9)
    numbers = [Scheme(name) for name in dense.schemes if name.startswith("<tp4,cp2,selective,full:")]
    assert len(numbers) == 31


def test_a_planner_derives_the_layer_plans_that_it_is_given() -> None:
    profile = load_profile("analytic:llama-7b-a800:A100-40GB,none,full")
    listed = ["1x<tp4,cp2,full:10/32>", "1x<tp4,pp2,split:10-22,full:10/32>"]
    cluster = Cluster(gpus=8, gpus_per_node=8)
    assert Planner(profile, cluster, strategies=listed).strategies == listed
    with pytest.raises(
        InvalidInputError, match=r"<tp4,cp2,full:10/30> is not .* 80 schemes, such as <tp4,cp2> "
    ):
        Planner(profile, cluster, strategies=["1x<tp4,cp2,full:10/30>"])


def test_a_length_that_no_scheme_admits_is_refused() -> None:
    profile = made_up_profile({"<1>": 512, "<tp2>": 1_024})
    cluster = Cluster(gpus=4, gpus_per_node=4)
    assert tune(profile, cluster, 1_024, [3])[0].plan.strategy == "2x<tp2>"
    with pytest.raises(InfeasibleError) as refused:
        tune(profile, cluster, 1_025, [3])
    assert refused.value.code == "sequence_too_long"
