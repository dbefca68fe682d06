"""The step's all-reduce: every rank gets the same sums, counts and verdict."""

import pytest

from hydraulis.runtime.agreement.step_sum import Votes
from ranks import run_ranks
from runtime.agreement.step_sum_workers import HALF, sum_cases


def test_every_rank_has_the_sums() -> None:
    by_rank = run_ranks(3, sum_cases)
    assert by_rank[0] == by_rank[1] == by_rank[2]
    plain, failed, differs = by_rank[0]
    assert plain.loss == pytest.approx(0.1 + 0.2 + 0.3)
    # The squares 1, 4 and 9.
    assert plain.norm == pytest.approx(14**0.5)
    assert (plain.num_failed, plain.is_same, plain.votes) == (0, True, [3, 1, 0])
    assert (failed.num_failed, failed.is_same) == (1, True)
    # Terms that only differ from a multiple of the modulus in the last bit.
    assert 2 * HALF > 2**32
    assert not differs.is_same


def test_a_count_lasts_until_its_question_is_outdated() -> None:
    votes, answers = Votes(), {"stop": False, "writing": True}
    for question in answers:
        votes.ask(question, lambda question=question: answers[question])  # type: ignore[misc]
    assert votes.cast() == [False, True]
    assert votes.count("stop") is None
    votes.take([0, 3])
    assert (votes.count("stop"), votes.count("writing")) == (0, 3)
    votes.forget("writing")
    assert (votes.count("stop"), votes.count("writing")) == (0, None)


def test_a_question_asked_again_is_answered_anew() -> None:
    votes = Votes()
    votes.ask("stop", lambda: True)
    votes.take([1])
    votes.ask("stop", lambda: False)
    assert votes.cast() == [False]
    assert votes.count("stop") is None
