"""Plans the next batch while an iteration runs."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import NamedTuple, Self


class PlannedStep(NamedTuple):
    """A batch's plan.

    Attributes:
        text: of the plan, as JSON.
        plan_ms: what planning took, on the wall.
    """

    text: str
    plan_ms: float


class PlansAhead:
    """Makes each step's plan on a thread of its own, one step ahead, while the step before runs.

    A plan depends on its batch and those planned before, so when it is made changes nothing; what a run
    learns of its schemes' times may reach a plan one step later. Planning is native code without the
    interpreter's lock, and the thread has nothing else to do: it does not hold training up. An error is
    raised when its step is taken, not before.

    Args:
        request: prepares a step on the calling thread, and gives what plans it on the other.
        steps: those that will be taken, in this order.

    Attributes:
        waited_ms: what the step that was taken last had to be waited for, on the wall.
    """

    def __init__(self, request: Callable[[int], Callable[[], PlannedStep]], steps: range) -> None:
        self._request = request
        self._steps = steps
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="planner")
        self._ahead: dict[int, Future[PlannedStep]] = {}
        self.waited_ms = self._settled_ms = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A plan that is being made is waited for: its end is bounded by the planner's search budget.
        self._thread.shutdown(wait=True, cancel_futures=True)

    def settle(self) -> None:
        """Wait for the plan that is being made, so that nobody plans until the next step is taken."""
        start = time.perf_counter()
        wait(self._ahead.values())
        self._settled_ms = 1e3 * (time.perf_counter() - start)

    def take(self, step: int) -> PlannedStep:
        """Give the plan of a step, and begin that of the next one.

        Raises:
            HydraulisError: what preparing or planning the step raised.
        """
        start = time.perf_counter()
        if step not in self._ahead:
            self._begin(step)
        planned = self._ahead.pop(step).result()
        self.waited_ms = 1e3 * (time.perf_counter() - start) + self._settled_ms
        if step + 1 in self._steps:
            self._begin(step + 1)
        return planned

    def _begin(self, step: int) -> None:
        future: Future[PlannedStep] = Future()
        try:
            future = self._thread.submit(self._request(step))
        except Exception as error:
            future.set_exception(error)
        self._ahead[step] = future
