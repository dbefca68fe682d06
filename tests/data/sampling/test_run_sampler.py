"""What is said of batches that repeat the same few sequences."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from data.sampling.test_run_length import Ten, config
from hydraulis.config.run import RunConfig
from hydraulis.data.sampling.run_sampler import MOST_EPOCHS, describe_run_repeats

EPOCH = 300  # tokens of ten sequences


def of_batches(epochs: int | None = None, **data: Any) -> RunConfig:
    return config(7 if epochs is None else None, epochs, **data)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"tokens_per_batch": (MOST_EPOCHS + 1) * EPOCH}, ("data.tokens_per_batch = 30,300", "101")),
        (
            {"tokens_per_batch": None, "sequences_per_batch": 20_000},
            ("data.sequences_per_batch = 20,000", "2,000"),
        ),
    ],
)
def test_batches_of_very_many_epochs_are_told_with_what_to_do(
    data: dict[str, Any], says: tuple[str, str]
) -> None:
    budget, times = says
    said = describe_run_repeats(of_batches(**data), Ten())
    assert said == (
        f"{budget}: the data, 10 sequences of 300 tokens in all, come about {times} times in each batch: it "
        "holds the same over and over; lower it, or add data"
    )


@pytest.mark.parametrize(
    ("epochs", "tokens"), [(None, 10), (None, MOST_EPOCHS * EPOCH), (MOST_EPOCHS, 1_000_000)]
)
def test_a_few_epochs_may_be_meant(epochs: int | None, tokens: int) -> None:
    assert describe_run_repeats(of_batches(epochs, tokens_per_batch=tokens), Ten()) == ""


def test_one_sequence_is_one() -> None:
    one = dataclasses.replace(Ten(), lengths=np.array([4]))
    said = describe_run_repeats(of_batches(tokens_per_batch=16_384), one)
    assert "the data, 1 sequence of 4 tokens in all, come about 4,096 times in" in said
