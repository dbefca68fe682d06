from collections.abc import Callable
from operator import methodcaller
from typing import Any

import numpy as np
import pytest

from helpers import refused
from hydraulis import (
    Cluster,
    CostProfile,
    InfeasibleError,
    InvalidInputError,
    LengthHistogram,
    Planner,
    Proposal,
    propose,
)

PROFILE = CostProfile.preset("llama-32b-a800")
CLUSTER = Cluster(gpus=64, gpus_per_node=8)
NO_BATCHES: Any = 5
BATCHES: list[Any] = [np.full(100, 900), [12_000, 15_000, 300], (20_000, 50)]


def test_a_list_is_proposed_for_batches_of_any_integers() -> None:
    proposal = propose(PROFILE, CLUSTER, BATCHES, 2)
    assert 1 <= len(proposal.strategies) <= 2
    assert sorted(batch for one in proposal.strategies for batch in one.batches) == [0, 1, 2]
    assert sum(one.share for one in proposal.strategies) == pytest.approx(1)
    assert proposal.expected_ms == proposal.strategies[-1].expected_ms
    assert proposal.cost == pytest.approx(proposal.expected_ms / proposal.search_ms - 1)
    assert proposal.candidates >= len(proposal.strategies)
    planner = Planner(PROFILE, CLUSTER, strategies=[one.strategy for one in proposal.strategies])
    assert planner.longest_admitted == proposal.longest_admitted >= 20_000
    assert str(len(proposal.strategies)) in repr(proposal)
    assert proposal.strategies[0].strategy in repr(proposal.strategies[0])


def test_a_list_may_be_proposed_under_the_in_flight_limit() -> None:
    batches = [[60_000, 900, 80]] * 2
    with pytest.raises(InfeasibleError):
        propose(PROFILE, CLUSTER, batches, 2)
    proposal = propose(PROFILE, CLUSTER, batches, 2, memory="in_flight")
    assert proposal.longest_admitted >= 60_000


def test_a_histogram_counts_and_samples() -> None:
    histogram = LengthHistogram([500, 70, 500], counts=[2, 5, 1])
    assert histogram == LengthHistogram([70] * 5 + [500] * 3)
    assert (histogram.sequences, histogram.longest) == (8, 500)
    assert repr(histogram) == "LengthHistogram(8 sequences, the longest 500)"
    batches = histogram.sample(tokens_per_batch=2_000, count=3, seed=4)
    again = histogram.sample(tokens_per_batch=2_000, count=3, seed=4)
    assert len(batches) == 3
    assert all(np.array_equal(one, other) for one, other in zip(batches, again, strict=True))
    assert not np.array_equal(
        np.concatenate(batches), np.concatenate(histogram.sample(tokens_per_batch=2_000, count=3))
    )
    assert all(batch.sum() >= 2_000 > batch[:-1].sum() for batch in batches)
    assert {int(length) for batch in batches for length in batch} == {70, 500}


@pytest.mark.parametrize(
    ("call", "code", "parts"),
    [
        (lambda: propose(PROFILE, CLUSTER, [], 1), "batch_empty", ()),
        (lambda: propose(PROFILE, CLUSTER, NO_BATCHES, 1), "lengths_invalid", ("batches",)),
        (lambda: propose(PROFILE, CLUSTER, [[5], [1.5]], 1), "lengths_invalid", ("batch 1: sequence 0", 1.5)),
        (lambda: propose(PROFILE, CLUSTER, [[5], [0]], 1), "lengths_invalid", ("batch 1: sequence 0",)),
        (lambda: propose(PROFILE, CLUSTER, BATCHES, 0), "argument_invalid", ("k is 0",)),
        (lambda: propose(PROFILE, CLUSTER, BATCHES, 1, context=-4), "argument_invalid", ("context is -4",)),
        (lambda: LengthHistogram([]), "batch_empty", ()),
        (lambda: LengthHistogram([5], counts=[1, 2]), "lengths_invalid", ("2 counts", "for 1")),
        (lambda: LengthHistogram([5], counts=[-1]), "lengths_invalid", ("count -1",)),
        (lambda: LengthHistogram([5, 6], [1.5, 2]), "lengths_invalid", ("counts: entry 0", 1.5)),
        (lambda: LengthHistogram([5], [2**64]), "lengths_invalid", ("counts: entry 0", "18446")),
        (
            lambda: LengthHistogram([5]).sample(tokens_per_batch=0, count=1),
            "argument_invalid",
            ("tokens_per_batch is 0",),
        ),
        (
            lambda: LengthHistogram([1, 3]).sample(tokens_per_batch=10**10, count=2),
            "argument_invalid",
            ("2 batches of 10,000,000,000 tokens", "10,000,000,000 sequences", "limit is 100,000,000"),
        ),
        (
            lambda: LengthHistogram([5]).sample(tokens_per_batch=1, count=-1),
            "argument_invalid",
            ("count is -1",),
        ),
    ],
)
def test_invalid_input_is_refused(call: Callable[[], Any], code: str, parts: tuple[object, ...]) -> None:
    with refused(code, *parts, kind=InvalidInputError):
        call()


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: propose(PROFILE, CLUSTER, BATCHES, 1, context=50_000), "sequence_too_long"),
        (lambda: propose(PROFILE, CLUSTER, [[5], [50_000]], 1), "sequence_too_long"),
    ],
)
def test_sequences_that_no_strategy_admits_are_infeasible(call: Callable[[], Any], code: str) -> None:
    with pytest.raises(InfeasibleError) as refusal:
        call()
    assert refusal.value.code == code


def test_progress_is_reported_and_its_exception_ends_the_work() -> None:
    told: list[tuple[str, int, int]] = []
    propose(PROFILE, CLUSTER, BATCHES, 2, progress=lambda *step: told.append(step))
    assert told[:12] == [("search", done, 12) for done in range(12)]
    assert {("choose", 0, 2), ("choose", 1, 2)} <= set(told)

    class EnoughError(Exception):
        pass

    def enough(step: str, done: int, of: int) -> None:
        if (done, of) == (3, 12):
            raise EnoughError(step)

    with pytest.raises(EnoughError, match="search"):
        propose(PROFILE, CLUSTER, BATCHES, 2, progress=enough)


@pytest.mark.parametrize(("cost", "says"), [(-4e-6, "0.00 %"), (-0.001, "-0.10 %"), (0.0123, "1.23 %")])
def test_a_cost_that_rounds_to_zero_has_no_sign(cost: float, says: str) -> None:
    made = methodcaller("_of", ([], 100.0, 100.0, cost, 8, None, 1))(Proposal)
    assert repr(made) == f"Proposal(0 strategies, 100.0 ms, {says} over search)"
