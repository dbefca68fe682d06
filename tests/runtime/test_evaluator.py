"""An evaluation has the loss that training would have, under any strategy, and leaves nothing behind."""

import pytest

from ranks import run_ranks
from runtime.evaluator_workers import Evaluated, evaluate, two_sources

STRATEGIES = ("1x<tp2,pp2>", "2x<cp2>", "1x<pp2>+2x<1>", "4x<1>", "1x<tp2>")


@pytest.fixture(scope="module")
def by_rank() -> list[Evaluated]:
    result: list[Evaluated] = run_ranks(4, evaluate, STRATEGIES, ("model.embed_tokens.*",))
    return result


def test_the_evaluated_loss_equals_that_of_training_under_any_strategy(by_rank: list[Evaluated]) -> None:
    first = by_rank[0]
    assert len(first.losses) == len(STRATEGIES)
    # Evaluated in several batches, trained on in one.
    assert first.losses == pytest.approx(first.trained, rel=1e-12)
    assert first.losses == pytest.approx([first.losses[0]] * len(STRATEGIES), rel=1e-12)
    assert first.losses[0] > 1


def test_every_rank_has_the_evaluation(by_rank: list[Evaluated]) -> None:
    assert all(rank.losses == by_rank[0].losses for rank in by_rank)


def test_an_evaluation_changes_no_parameter_or_optimizer_state(by_rank: list[Evaluated]) -> None:
    assert all(rank.untouched for rank in by_rank)


def test_evaluations_are_at_their_interval_and_at_the_end(by_rank: list[Evaluated]) -> None:
    assert [rank.due for rank in by_rank] == [[3, 6, 9, 10]] * 4


def test_each_source_has_its_loss_and_its_share_of_the_mean(by_rank: list[Evaluated]) -> None:
    mixed, alone = by_rank[0].mixed, by_rank[0].alone
    assert [one.loss for one in mixed.sources] == pytest.approx(alone, rel=1e-12)
    assert [one.targets for one in mixed.sources] == [part.target_counts.sum() for part in two_sources()]
    # The weights are shares of the tokens.
    first, second = (part.target_counts.sum() / part.lengths.sum() for part in two_sources())
    share = 3 * first / (3 * first + second)
    assert mixed.loss == pytest.approx(share * alone[0] + (1 - share) * alone[1], rel=1e-12)
    assert all(rank.mixed == mixed for rank in by_rank)


def test_a_limit_leaves_sequences_of_each_source_out(by_rank: list[Evaluated]) -> None:
    mixed, limited = by_rank[0].mixed, by_rank[0].limited
    for some, every in zip(limited.sources, mixed.sources, strict=True):
        assert some.source == every.source
        assert 2 <= some.targets < every.targets
