"""What rank 0 makes, reads or refuses reaches every rank."""

import numpy as np

from ranks import run_ranks
from runtime.ranks.rank_zero_workers import (
    ERRORS,
    VALUES,
    acts,
    acts_alone,
    any_other_failure,
    corpora,
    describe,
    errors_and_what_comes_after,
    is_everywhere,
    outlast_the_timeout,
    values,
)
from runtime.tiny import made_up_corpus


def test_a_value_of_rank_zero_reaches_every_rank_unchanged() -> None:
    for rank, (received, num_calls) in enumerate(run_ranks(3, values)):
        assert received == list(VALUES)
        assert num_calls == (len(VALUES) if rank == 0 else 0)


def test_an_error_of_rank_zero_is_the_same_error_everywhere_and_the_ranks_stay_in_step() -> None:
    expected = [describe(error) for error in ERRORS]
    for caught, after in run_ranks(3, errors_and_what_comes_after):
        assert caught == expected
        assert after == "after"


def test_a_call_runs_on_rank_zero_alone_and_its_failure_reaches_all() -> None:
    first, *others = run_ranks(3, acts)
    refused = ("HydraulisError", "file_unwritable", "disk full")
    # What nobody foresaw keeps its own type, and traceback, where it happened.
    assert first == (1, refused, ("ZeroDivisionError", "", "oh"))
    for num_calls, caught, unforeseen in others:
        assert (num_calls, caught) == (0, refused)
        assert unforeseen[:2] == ("HydraulisError", "rank_zero_failed")
        assert "ZeroDivisionError('oh')" in unforeseen[2]


def test_an_act_without_a_collective_fails_every_rank_at_the_next_reply() -> None:
    for rank, (acted, answers) in enumerate(run_ranks(3, acts_alone)):
        assert acted == ([0] if rank == 0 else [])
        assert answers == ["file_unwritable True", "a text"]


def test_a_corpus_is_loaded_once_and_equal_everywhere() -> None:
    original = made_up_corpus(200)
    for rank, (corpus, loaded_itself, refused) in enumerate(run_ranks(3, corpora)):
        assert loaded_itself is (rank == 0)
        assert np.array_equal(corpus.token_T, original.token_T)
        assert np.array_equal(corpus.offset, original.offset)
        assert corpus.token_T.dtype == np.uint8
        assert corpus.left_out == {"files": 2}
        assert corpus.fingerprint == original.fingerprint
        assert refused == ("InvalidInputError", "corpus_empty", "no document")


def test_any_other_failure_is_raised_on_rank_0_and_named_on_the_others() -> None:
    assert run_ranks(3, any_other_failure) == ["its own", "rank_zero_failed", "rank_zero_failed"]


def test_errors_of_every_rank_are_marked_as_shared() -> None:
    assert run_ranks(2, is_everywhere) == [[True, True, False]] * 2


def test_work_of_rank_zero_with_signs_of_life_may_outlast_the_timeout_of_a_collective() -> None:
    assert run_ranks(3, outlast_the_timeout) == [("slow", "too slow")] * 3
