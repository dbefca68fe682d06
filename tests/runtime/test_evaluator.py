"""An evaluation has the loss that training would have, under any strategy, and leaves nothing behind."""

import pytest

from ranks import run_ranks
from runtime.evaluator_workers import Evaluated, evaluate

STRATEGIES = ("1x<tp2,pp2>", "2x<cp2>", "1x<pp2>+2x<1>", "4x<1>", "1x<tp2>")


@pytest.fixture(scope="module")
def by_rank() -> list[Evaluated]:
    result: list[Evaluated] = run_ranks(4, evaluate, STRATEGIES, ("model.embed_tokens.*",))
    return result


def test_the_loss_is_that_of_training_under_any_strategy(by_rank: list[Evaluated]) -> None:
    first = by_rank[0]
    assert len(first.losses) == len(STRATEGIES)
    # Evaluated in several batches, trained on in one.
    assert first.losses == pytest.approx(first.trained, rel=1e-12)
    assert first.losses == pytest.approx([first.losses[0]] * len(STRATEGIES), rel=1e-12)
    assert first.losses[0] > 1


def test_every_rank_knows_it(by_rank: list[Evaluated]) -> None:
    assert all(rank.losses == by_rank[0].losses for rank in by_rank)


def test_it_leaves_nothing_behind(by_rank: list[Evaluated]) -> None:
    assert all(rank.untouched for rank in by_rank)


def test_it_is_made_where_it_is_due_and_at_the_end(by_rank: list[Evaluated]) -> None:
    assert [rank.due for rank in by_rank] == [[3, 6, 9, 10]] * 4
