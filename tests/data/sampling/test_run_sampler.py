"""The warning about batches that repeat the data."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from data.sampling.test_run_length import Ten, config
from hydraulis.config.run import RunConfig
from hydraulis.data.sampling.run_sampler import MAX_EPOCHS, describe_run_repeats

EPOCH = 300  # tokens of ten sequences


def of_batches(epochs: int | None = None, **data: Any) -> RunConfig:
    return config(7 if epochs is None else None, epochs, **data)


@pytest.mark.parametrize(
    ("data", "budget", "times"),
    [
        ({"tokens_per_batch": (MAX_EPOCHS + 1) * EPOCH}, "data.tokens_per_batch = 30,300", "101 times"),
        (
            {"tokens_per_batch": None, "sequences_per_batch": 20_000},
            "data.sequences_per_batch = 20,000",
            "2,000 times",
        ),
    ],
)
def test_batches_of_very_many_epochs_get_a_warning(data: dict[str, Any], budget: str, times: str) -> None:
    warning = describe_run_repeats(of_batches(**data), Ten())
    assert warning.startswith(budget)
    for part in ("10 sequences", "300 tokens", times):
        assert part in warning


@pytest.mark.parametrize(
    ("epochs", "tokens"), [(None, 10), (None, MAX_EPOCHS * EPOCH), (MAX_EPOCHS, 1_000_000)]
)
def test_a_few_epochs_get_no_warning(epochs: int | None, tokens: int) -> None:
    assert describe_run_repeats(of_batches(epochs, tokens_per_batch=tokens), Ten()) == ""


def test_a_single_sequence_is_named_in_the_singular() -> None:
    one = dataclasses.replace(Ten(), lengths=np.array([4]))
    warning = describe_run_repeats(of_batches(tokens_per_batch=16_384), one)
    assert "1 sequence of 4 tokens" in warning
    assert "4,096 times" in warning
