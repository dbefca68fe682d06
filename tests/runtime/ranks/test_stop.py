"""Ctrl-C, termination and a hang-up become a request that all ranks agree on."""

import os
import signal

import pytest

from hydraulis.runtime.ranks.stop import StopRequest
from ranks import run_ranks
from runtime.ranks.stop_workers import (
    agree_after_each_signal,
    agree_after_its_parent,
    agree_while_interrupted,
)

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def test_a_request_on_one_rank_reaches_all_and_lasts() -> None:
    assert run_ranks(3, agree_after_each_signal) == [[False, True, True] * 3] * 3


def test_a_request_that_comes_while_ranks_wait_for_each_other_is_not_lost() -> None:
    assert run_ranks(2, agree_while_interrupted) == [[False, True]] * 2


@pytest.mark.parametrize(("variable", "stops"), [("TORCHELASTIC_RUN_ID", True), ("SLURM_JOB_ID", False)])
def test_only_the_loss_of_torchrun_is_a_request(variable: str, *, stops: bool) -> None:
    assert run_ranks(2, agree_after_its_parent, variable) == [[False, stops]] * 2


@pytest.mark.parametrize("number", NUMBERS)
def test_the_handlers_are_restored(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in NUMBERS]
    caught = []
    with StopRequest():
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
        caught.append("still here")
    assert caught == ["still here"]
    assert [signal.getsignal(each) for each in NUMBERS] == before


def test_an_ignored_hang_up_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_handlers_stay_where_a_process_ends_with_its_own_code() -> None:
    before = {number: signal.getsignal(number) for number in NUMBERS}
    try:
        with StopRequest() as stop:
            stop.hold()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal == signal.SIGTERM
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_the_handlers_are_restored_after_an_error() -> None:
    before = signal.getsignal(signal.SIGINT)

    def fail() -> None:
        with StopRequest():
            assert signal.getsignal(signal.SIGINT) != before
            message = "planted"
            raise RuntimeError(message)

    with pytest.raises(RuntimeError, match="planted"):
        fail()
    assert signal.getsignal(signal.SIGINT) == before
