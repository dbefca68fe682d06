import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from core.links import link
from helpers import refused
from hydraulis import (
    Cluster,
    CostProfile,
    InvalidInputError,
    LookaheadPlan,
    Planner,
)

PROFILE = CostProfile.preset("llama-32b-a800")
CLUSTER = Cluster(gpus=64, gpus_per_node=8)
SEARCH = Planner(PROFILE, CLUSTER, strategies="search")
LISTED = Planner(PROFILE, CLUSTER)
SMALL = Planner(
    CostProfile.preset("llama-7b-a800"),
    Cluster(gpus=8, gpus_per_node=8),
    strategies=["1x<tp8>", "1x<tp4>+2x<tp2>", "2x<tp2,pp2>", "1x<tp2,pp2>+1x<pp4>"],
)


def batches(number: int) -> list[NDArray[np.int64]]:
    """Short sequences, and one of 32,768 tokens in each batch."""
    lengths = np.random.default_rng(2).lognormal(6.2, 1.0, (number, 180)).astype(int).clip(1, 9_000)
    lengths[:, 17] = 32_768
    return list(lengths)


def origin(window: LookaheadPlan) -> list[tuple[int, int, int]]:
    """Step, batch and id of every sequence."""
    return [
        (step, int(batch), int(sequence))
        for step, members in enumerate(window.members)
        for batch, sequence in members
    ]


def test_one_batch_without_costs_gives_the_plan_of_the_planner() -> None:
    for planner in (SEARCH, LISTED):
        window = planner.plan_lookahead(batches(1))
        assert window.plans == [planner.plan(batches(1)[0])]
        assert len(window) == 1
        assert window.step_ms == window.iteration_ms == window.plans[0].iteration_ms
        assert window.lower_bound_ms == window.plans[0].lower_bound_ms
        assert np.array_equal(window.members[0], [[0, sequence] for sequence in range(180)])


def test_sequences_move_only_within_the_delay() -> None:
    window = SEARCH.plan_lookahead(batches(3))
    assert window.moved == 0
    alone = [SEARCH.plan(lengths).iteration_ms for lengths in batches(3)]
    assert window.step_ms <= sum(alone) * 1.001
    for plan, lengths in zip(window.plans, batches(3), strict=True):
        assert SEARCH.check(plan, lengths) == []


def test_long_sequences_are_gathered_within_the_delay() -> None:
    came = batches(4)
    alone, window = SEARCH.plan_lookahead(came), SEARCH.plan_lookahead(came, max_delay=2)
    assert SEARCH.check_lookahead(window, came, max_delay=2) == []
    assert window.step_ms < 0.9 * alone.step_ms
    assert sorted((batch, sequence) for _, batch, sequence in origin(window)) == [
        (batch, sequence) for batch in range(4) for sequence in range(180)
    ]
    assert all(abs(step - batch) <= 2 for step, batch, _ in origin(window))
    assert window.moved == sum(step != batch for step, batch, _ in origin(window)) > 0
    for plan, members, lengths in zip(window.plans, window.members, came, strict=True):
        assert np.array_equal(plan.lengths, [came[batch][sequence] for batch, sequence in members])
        assert abs(plan.lengths.sum() - lengths.sum()) <= lengths.sum() / 100
    assert window == SEARCH.plan_lookahead(came, max_delay=2)
    assert "4 batches" in repr(window)
    assert any("sequence_delayed" in broken for broken in SEARCH.check_lookahead(window, came, max_delay=0))


def test_targets_move_with_their_sequences() -> None:
    came = batches(3)
    targets = [lengths // 2 + place for place, lengths in enumerate(came)]
    window = SEARCH.plan_lookahead(came, targets, max_delay=2)
    assert window.moved > 0
    for plan, members in zip(window.plans, window.members, strict=True):
        assert np.array_equal(plan.targets, [targets[batch][sequence] for batch, sequence in members])
    assert SEARCH.check_lookahead(window, came, targets, max_delay=2) == []
    assert SEARCH.check_lookahead(window, came, max_delay=2) != []


def test_a_change_that_costs_too_much_is_not_made() -> None:
    came = [batch[batch < 8_000] if place % 2 else batch for place, batch in enumerate(batches(4))]
    free = LISTED.plan_lookahead(came)
    assert len({plan.strategy for plan in free.plans}) > 1
    assert free.switch_ms == 0
    dear = LISTED.plan_lookahead(came, switch_ms=1e6)
    assert len({plan.strategy for plan in dear.plans}) == 1
    assert dear.switch_ms == 0
    some = LISTED.plan_lookahead(came, switch_ms=10)
    changes = sum(one.strategy != other.strategy for one, other in itertools.pairwise(some.plans))
    assert some.switch_ms == 10 * changes
    kept = LISTED.plan_lookahead(came, switch_ms=1e6, previous="4x<tp16>")
    assert {plan.strategy for plan in kept.plans} == {"4x<tp16>"}
    assert LISTED.check_lookahead(kept, came, switch_ms=1e6, previous="4x<tp16>") == []


def test_slow_links_favour_strategies_that_move_less() -> None:
    came = batches(3)
    planner = Planner(PROFILE, CLUSTER, link=link(0.5))
    slow, free = planner.plan_lookahead(came), LISTED.plan_lookahead(came)
    assert planner.check_lookahead(slow, came) == []
    assert slow.step_ms == pytest.approx(slow.iteration_ms + slow.transfer_ms)
    one_each = (Planner(PROFILE, CLUSTER, strategies=[plan.strategy], link=link(0.5)) for plan in free.plans)
    paid = [one.plan(lengths) for one, lengths in zip(one_each, came, strict=True)]
    assert slow.transfer_ms < 0.7 * sum(plan.transfer_ms or 0.0 for plan in paid)
    assert slow.step_ms < sum(plan.step_ms for plan in paid)
    assert any("transfers_differ" in broken for broken in LISTED.check_lookahead(slow, came))


@given(
    st.lists(
        st.lists(st.integers(1, SMALL.longest_admitted), min_size=1, max_size=20), min_size=1, max_size=4
    ),
    st.integers(0, 3),
    st.floats(0, 100),
)
def test_every_lookahead_keeps_its_promises(came: list[list[int]], max_delay: int, switch_ms: float) -> None:
    window = SMALL.plan_lookahead(came, max_delay=max_delay, switch_ms=switch_ms)
    assert SMALL.check_lookahead(window, came, max_delay=max_delay, switch_ms=switch_ms) == []
    assert window.lower_bound_ms <= window.iteration_ms <= window.step_ms


NO_BATCHES: Any = 5


@pytest.mark.parametrize(
    ("call", "code", "parts"),
    [
        (lambda: SEARCH.plan_lookahead([]), "batch_empty", ()),
        (lambda: SEARCH.plan_lookahead(NO_BATCHES), "lengths_invalid", ("batches",)),
        (lambda: SEARCH.plan_lookahead([[5], [0]]), "lengths_invalid", ("batch 1: sequence 0",)),
        (lambda: SEARCH.plan_lookahead([[5]], [[1], [2]]), "lengths_invalid", ("2 batches", "for 1")),
        (lambda: SEARCH.plan_lookahead([[5], [6]], [[1], [7]]), "lengths_invalid", ("batch 1: sequence 0",)),
        (
            lambda: SEARCH.plan_lookahead([[5]], [["a"]]),
            "lengths_invalid",
            ("targets of batch 0: sequence 0",),
        ),
        (lambda: SEARCH.plan_lookahead([[5]], max_delay=-1), "argument_invalid", ("max_delay is -1",)),
        (lambda: SEARCH.plan_lookahead([[5]], switch_ms=-1), "argument_invalid", ("switch_ms is -1",)),
        (lambda: SEARCH.plan_lookahead([[5]], previous="8x"), "strategy_invalid", ("8x",)),
        (
            lambda: Planner(PROFILE, CLUSTER, max_strategies=2).plan_lookahead([[5]]),
            "argument_invalid",
            ("max_strategies",),
        ),
    ],
)
def test_invalid_input_is_refused(call: Callable[[], Any], code: str, parts: tuple[str, ...]) -> None:
    with refused(code, *parts, kind=InvalidInputError):
        call()


def test_a_sequence_that_no_strategy_admits_is_named_with_its_batch() -> None:
    with refused("sequence_too_long", "batch 1", "sequence 1", "50,000"):
        SEARCH.plan_lookahead([[5], [5, 50_000]])


def test_progress_is_reported_and_its_exception_ends_the_work() -> None:
    told: list[tuple[str, int, int]] = []
    SEARCH.plan_lookahead(batches(2), max_delay=1, progress=lambda *step: told.append(step))
    assert told[:3] == [("plan", 0, 2), ("plan", 1, 2), ("exchange", 0, 16)]

    class EnoughError(Exception):
        pass

    def enough(step: str, done: int, of: int) -> None:
        if (done, of) == (1, 2):
            raise EnoughError(step)

    with pytest.raises(EnoughError, match="plan"):
        SEARCH.plan_lookahead(batches(2), progress=enough)
