from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batching.drawn import long_tail, sampler
from helpers import refused
from hydraulis.batching.adapters import equal_epochs
from hydraulis.batching.adapters.equal_epochs import with_equal_epochs
from hydraulis.errors import InfeasibleError, InvalidInputError

LENGTHS = long_tail(60, seed=7, longest=100)


def counts(one: Any, epochs: int) -> list[int]:
    return [one.count_steps(epoch) for epoch in range(epochs)]


@pytest.mark.parametrize("limits", [{"epochs": 4.5, "max_steps": -1}, {"epochs": None, "max_steps": 60}])
def test_every_epoch_of_a_run_has_the_steps_of_the_largest(limits: dict[str, Any]) -> None:
    free = sampler(LENGTHS, rank=0, ranks=1, cap_tokens=200, micro_batches=2)
    natural = counts(free, 5)
    assert len(set(natural)) > 1
    assert counts(with_equal_epochs(free, **limits), 4) == [max(natural)] * 4


def test_samplers_of_equal_epochs_stay_as_they_are() -> None:
    for options in (
        {"sequences_per_step": 16},
        {"tokens_per_step": 2000},
        {"micro_batches": 1, "steps_per_epoch": 9},
    ):
        one = sampler(LENGTHS, rank=0, **options)
        assert with_equal_epochs(one, epochs=3, max_steps=None) is one


def test_a_run_without_an_end_is_refused() -> None:
    with refused("argument_invalid", "steps_per_epoch"):
        with_equal_epochs(sampler(LENGTHS, rank=0, micro_batches=1), epochs=-1, max_steps=None)


def check_epochs(one: Any, epochs: int, *, is_whole: bool) -> None:
    """Check that each epoch has its number of steps, keeps the cap, and has every sequence once."""
    slots = one.ranks * one.micro_batches
    for epoch in range(epochs):
        one.set_epoch(epoch)
        batches = list(one)
        assert len(batches) == len(one) == one.steps_per_epoch * slots
        assert all(batch or one.allow_empty for batch in batches)
        assert max(sum(one.lengths[i] for i in batch) for batch in batches) <= one.cap_tokens
        seen = Counter(i for batch in batches for i in batch)
        assert max(seen.values()) == 1
        assert len(seen) == len(one.lengths) or not is_whole


@pytest.mark.parametrize("seed", [2, 20, 34])
def test_an_epoch_of_fewer_steps_gives_some_of_its_sequences_to_another_one(seed: int) -> None:
    """Steps of one to two sequences for each micro-batch have no halves."""
    generator = np.random.default_rng(seed)
    size, least = int(generator.integers(40, 400)), int(generator.integers(10, 60))
    lengths = generator.integers(least, 100, size).tolist()
    free = sampler(lengths, ranks=1, cap_tokens=100, micro_batches=8, seed=seed)
    assert len(set(counts(free, 6))) > 1
    check_epochs(with_equal_epochs(free, epochs=6, max_steps=None), 6, is_whole=True)


@given(
    st.integers(1, 100).flatmap(lambda least: st.lists(st.integers(least, 100), min_size=1, max_size=150)),
    st.fixed_dictionaries(
        {
            "ranks": st.integers(1, 3),
            "micro_batches": st.integers(1, 4),
            "drop_last": st.booleans(),
            "allow_empty": st.booleans(),
            "equal_sequences": st.booleans(),
            "seed": st.integers(0, 99),
        }
    ),
)
def test_a_run_that_begins_has_all_of_its_epochs(lengths: list[int], options: dict[str, Any]) -> None:
    try:
        one = with_equal_epochs(sampler(lengths, cap_tokens=100, **options), epochs=4, max_steps=None)
    except (InfeasibleError, InvalidInputError):
        return
    check_epochs(one, 4, is_whole=not options["drop_last"])


def test_a_higher_number_of_steps_is_tried_and_then_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    free = sampler(LENGTHS, rank=0, ranks=1, cap_tokens=200, micro_batches=2)
    most, divided = max(counts(free, 5)), equal_epochs._divided

    def fail_below(least: int) -> None:
        def fail(one: Any, count: int, natural: list[int]) -> Any:
            if count < least:
                message = "too few"
                raise InfeasibleError(message, code="batch_unplaceable")
            return divided(one, count, natural)

        monkeypatch.setattr(equal_epochs, "_divided", fail)

    fail_below(most + 2)
    assert with_equal_epochs(free, epochs=5, max_steps=None).steps_per_epoch == most + 2
    fail_below(10**6)
    with refused("batch_unplaceable", "cap_tokens is 200 and micro_batches 2", "drop_last=True"):
        with_equal_epochs(free, epochs=5, max_steps=None)


def test_a_run_whose_division_takes_hours_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning trains 1,000 epochs where it has no number of them."""
    free = sampler(LENGTHS, rank=0, ranks=1, cap_tokens=200, micro_batches=2)
    monkeypatch.setattr(equal_epochs, "_MOST_DIVIDED", 60 * 999)
    with refused("argument_invalid", "1,000 epochs of 60 sequences", "at most 59,940", "sequences_per_step"):
        with_equal_epochs(free, epochs=1000, max_steps=None)
    with_equal_epochs(free, epochs=1000, max_steps=60)


def test_an_epoch_that_lacks_steps_keeps_its_last_one() -> None:
    """Otherwise an epoch would drop sequences that the steps of the others need."""
    lengths = np.random.default_rng(2).integers(45, 100, 33).tolist()
    free = sampler(lengths, ranks=1, cap_tokens=100, micro_batches=8, drop_last=True)
    assert counts(free, 3) == [3, 4, 3]
    check_epochs(with_equal_epochs(free, epochs=3, max_steps=None), 3, is_whole=False)
