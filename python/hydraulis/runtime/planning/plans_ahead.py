"""Plans the next batch while an iteration runs."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import NamedTuple, Self

from hydraulis._core import Plan

# Seconds between two heartbeats while a plan takes long: far below any timeout of a process group.
HEARTBEAT_S = 1.0


class PlannedStep(NamedTuple):
    """A batch's plan and its planning time.

    Attributes:
        plan: The plan.
        plan_ms: Wall time of planning, in milliseconds.
    """

    plan: Plan
    plan_ms: float


class PlansAhead:
    """Plans each step on a separate thread, one step ahead, while the step before runs.

    A plan depends only on its batch, the earlier plans, and the measurements before it was requested, so its
    timing does not change it. Planning is native code without the interpreter's lock on a dedicated
    thread, so it does not delay training. An error is raised when its step is taken.

    Args:
        request: Function that prepares a step on the calling thread while no plan is made, and returns the
            function that plans the step on the planning thread.
        steps: Steps that will be taken, in this order.

    Attributes:
        plan_ms: Planning time of the last taken step, in milliseconds; 0 on ranks that take none.
        waited_ms: Wall time spent waiting for the plan of the last taken step, in milliseconds.
    """

    def __init__(self, request: Callable[[int], Callable[[], PlannedStep]], steps: range) -> None:
        self._request = request
        self._steps = steps
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="planner")
        self._ahead: dict[int, Future[PlannedStep]] = {}
        self.plan_ms = self.waited_ms = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The wait for a plan in progress is bounded by the planner's search budget.
        self._thread.shutdown(wait=True, cancel_futures=True)

    def take(self, step: int, alive: Callable[[], None] = lambda: None) -> Plan:
        """Return the plan of a step, and start planning the next one.

        Args:
            step: Number of the step.
            alive: Heartbeat function, called while the plan takes long.

        Raises:
            HydraulisError: The preparation or planning of the step failed.
        """
        start = time.perf_counter()
        if step not in self._ahead:
            self._begin(step)
        ahead = self._ahead.pop(step)
        while not _wait_for_plan(ahead):
            alive()
        plan, self.plan_ms = ahead.result()
        self.waited_ms = 1e3 * (time.perf_counter() - start)
        if step + 1 in self._steps:
            self._begin(step + 1)
        return plan

    def _begin(self, step: int) -> None:
        future: Future[PlannedStep] = Future()
        try:
            future = self._thread.submit(self._request(step))
        except Exception as error:
            future.set_exception(error)
        self._ahead[step] = future


def _wait_for_plan(ahead: "Future[PlannedStep]") -> bool:
    """Wait `HEARTBEAT_S` at most for a plan or for its error; return whether there is one."""
    try:
        ahead.exception(HEARTBEAT_S)
    except TimeoutError:
        return False
    return True
