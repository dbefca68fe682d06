"""A call that may never return is left after a time, or on request."""

import threading

import pytest

from hydraulis.runtime.ranks.liveness.bounded import Stopped, call_within


def test_the_result_and_the_error_of_a_call_are_passed_on() -> None:
    assert call_within(60.0, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        call_within(60.0, lambda: 1 / 0)


def test_a_call_that_does_not_return_is_abandoned() -> None:
    with pytest.raises(TimeoutError):
        call_within(0.1, threading.Event().wait)
    with pytest.raises(Stopped):
        call_within(60.0, threading.Event().wait, lambda: True)
