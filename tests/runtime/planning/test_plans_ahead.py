"""Plans are made one step ahead, in order, and their errors come with their steps."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from hydraulis.errors import HydraulisError
from hydraulis.runtime.planning.plans_ahead import PlannedStep, PlansAhead

WAIT_S = 10.0


class Requests:
    """Remembers what was prepared and what was made, and where.

    Args:
        refused: Step that cannot be planned.
        unprepared: Step that cannot be prepared.
        held: Step whose plan is not done before the test says so.
    """

    def __init__(
        self, refused: int | None = None, unprepared: int | None = None, held: int | None = None
    ) -> None:
        self.prepared: list[int] = []
        self.made: list[int] = []
        self.threads: set[threading.Thread] = set()
        self.may_end = threading.Event()
        self.begun = threading.Event()
        self._refused, self._unprepared, self._held = refused, unprepared, held

    def __call__(self, step: int) -> Callable[[], PlannedStep]:
        assert threading.current_thread() is threading.main_thread()
        self.prepared.append(step)
        self._refuse(step, self._unprepared)
        return lambda: self._make(step)

    def _make(self, step: int) -> PlannedStep:
        self.threads.add(threading.current_thread())
        if step == self._held:
            self.begun.set()
            assert self.may_end.wait(WAIT_S)
        self.made.append(step)
        self._refuse(step, self._refused)
        plan: Any = f"plan {step}"
        return PlannedStep(plan, 1.0)

    def _refuse(self, step: int, refused: int | None) -> None:
        if step == refused:
            message = f"step {step} is refused"
            raise HydraulisError(message, code="plan_broken")


def test_only_the_next_plan_is_made_while_a_step_runs() -> None:
    requests = Requests()
    with PlansAhead(requests, range(3, 6)) as plans:
        assert plans.take(3) == "plan 3"
        # Between two calls of take the step runs.
        assert requests.prepared == [3, 4]
        for _ in range(1000):
            if requests.made == [3, 4]:
                break
            threading.Event().wait(0.01)
        assert requests.made == [3, 4]
        assert [plans.take(step) for step in (4, 5)] == ["plan 4", "plan 5"]
    assert requests.prepared == requests.made == [3, 4, 5]
    assert threading.main_thread() not in requests.threads
    assert len(requests.threads) == 1


@pytest.mark.parametrize("where", ["refused", "unprepared"])
def test_a_planning_error_is_raised_at_its_step(where: str) -> None:
    requests = Requests(**{where: 1})
    with PlansAhead(requests, range(3)) as plans:
        assert plans.take(0) == "plan 0"
        with pytest.raises(HydraulisError, match="step 1 is refused"):
            plans.take(1)
    assert requests.prepared == [0, 1]


def test_waiting_lasts_for_the_rest_of_the_planning() -> None:
    requests = Requests()
    with PlansAhead(requests, range(2)) as plans:
        plans.take(0)
        plans._ahead[1].result(WAIT_S)
        plans.take(1)
        assert 0 < plans.waited_ms < 1e3 * WAIT_S


def test_leaving_cancels_a_plan_and_ends_the_thread() -> None:
    requests = Requests(held=1)
    with PlansAhead(requests, range(9)) as plans:
        plans.take(0)
        assert requests.begun.wait(WAIT_S)
        threading.Timer(0.05, requests.may_end.set).start()
    (thread,) = requests.threads
    assert not thread.is_alive()
    assert requests.made == [0, 1]


def test_a_plan_that_takes_long_is_waited_for_with_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydraulis.runtime.planning.plans_ahead.HEARTBEAT_S", 0.01)
    requests = Requests(held=0)
    beats: list[str] = []

    def alive() -> None:
        beats.append("alive")
        if len(beats) == 3:
            requests.may_end.set()

    with PlansAhead(requests, range(2)) as plans:
        assert plans.take(0, alive) == "plan 0"
    assert len(beats) >= 3
