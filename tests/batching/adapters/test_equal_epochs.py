from typing import Any

import pytest

from batching.drawn import long_tail, sampler
from helpers import refused
from hydraulis.batching.adapters.equal_epochs import with_equal_epochs

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
