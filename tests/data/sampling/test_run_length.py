"""The number of iterations of epochs, and the contents of the last batch."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from helpers import refused
from hydraulis.config.run import RunConfig
from hydraulis.data.sampling.run_length import run_length, with_steps
from hydraulis.data.tokens import SequenceTokens
from runtime.tiny import run_config


@dataclass(frozen=True)
class Ten:
    """Ten sequences of 30 tokens: five fill a batch of 120 in part, four to the brim."""

    lengths: npt.NDArray[np.int64] = dataclasses.field(default_factory=lambda: np.full(10, 30))

    @property
    def target_counts(self) -> npt.NDArray[np.int64]:
        return self.lengths - 1

    def read(self, index: int, /) -> SequenceTokens:
        return np.arange(self.lengths[index])


def config(steps: int | None, epochs: int | None, **data: Any) -> RunConfig:
    made = run_config(1, ["1x<1>"])
    train = dataclasses.replace(made.train, steps=steps, epochs=epochs)
    return dataclasses.replace(made, train=train, data=dataclasses.replace(made.data, **data))


def test_steps_alone_need_no_data() -> None:
    assert run_length(config(7, None), Ten()) is None
    assert with_steps(config(7, None), None) == config(7, None)


@pytest.mark.parametrize(
    ("epochs", "epoch_end", "steps", "last", "dropped"),
    [(1, "continue", 3, 2, 0), (2, "continue", 5, 4, 0), (3, "continue", 8, 2, 0), (3, "drop", 6, 4, 6)],
)
def test_the_last_batch_is_the_rest_unless_it_is_dropped(
    epochs: int, epoch_end: str, steps: int, last: int, dropped: int
) -> None:
    found = run_length(config(None, epochs, epoch_end=epoch_end), Ten())
    assert found is not None
    assert (found.steps, found.last_sequences, found.last_tokens) == (steps, last, 30 * last)
    assert found.dropped == dropped
    assert str(found) == ("1 epoch is 3 steps" if epochs == 1 else f"{epochs} epochs are {steps} steps")


@pytest.mark.parametrize(("steps", "wanted"), [(None, 5), (4, 4), (9, 5)])
def test_a_run_ends_at_the_first_limit(steps: int | None, wanted: int) -> None:
    given = config(steps, 2)
    known = with_steps(given, run_length(given, Ten()))
    assert known.train.num_steps == wanted
    assert known.train.epochs == 2
    # Known once, it stays: the effective configuration is one that can be given.
    assert with_steps(known, run_length(known, Ten())) == known


def test_epochs_that_would_be_shuffled_for_minutes_are_refused_at_once() -> None:
    # A batch of many epochs: few steps, and each epoch is shuffled to count them.
    whole = config(None, 5_000_000, tokens_per_batch=100_000)
    with refused("argument_invalid", "epochs = 5,000,000", "10 sequences", "39,920"):
        run_length(whole, Ten())
    assert run_length(config(None, 1_000, tokens_per_batch=100_000), Ten()) is not None


def test_epochs_without_end_are_refused_at_once() -> None:
    with refused("argument_invalid", "epochs = 1,000,000,000", "2,500,000,000 steps"):
        run_length(config(None, 10**9), Ten())
