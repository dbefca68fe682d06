"""Wherever the planner takes a strategy, it takes one as it is written, or as a value."""

from helpers import refused
from hydraulis import Cluster, CostProfile, Planner, Strategy

LENGTHS = [31_000, 12_000, 900, 900, 450, 80]


def test_strategies_are_texts_or_values() -> None:
    profile, cluster = CostProfile.preset("llama-32b-a800"), Cluster(gpus=64, gpus_per_node=8)
    texts = ["4x<tp16>", "1x<tp16>+6x<tp8>"]
    values = [Strategy(text) for text in texts]
    planner = Planner(profile, cluster, strategies=values, max_strategies=1)
    assert planner.strategies == texts
    assert Planner(profile, cluster, strategies=[values[0], texts[1]]).strategies == texts
    for text, value in zip(texts, values, strict=True):
        plan = planner.plan(LENGTHS, used=[value])
        assert plan == planner.plan(LENGTHS, used=[text])
        assert plan.strategy == text
    free = Planner(profile, cluster, strategies=values)
    for previous in (values[0], texts[0]):
        window = free.plan_lookahead([LENGTHS], switch_ms=1e9, previous=previous)
        assert (window.switch_ms, window.plans[0].strategy) == (0, texts[0])
        assert free.check_lookahead(window, [LENGTHS], switch_ms=1e9, previous=previous) == []
    with refused("strategy_invalid", "'search'"):
        Planner(profile, cluster, strategies=[texts[0], 5])  # type: ignore[list-item]
