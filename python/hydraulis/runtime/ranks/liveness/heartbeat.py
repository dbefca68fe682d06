"""The thread of a rank that gives signs of life, notices a silent rank, and takes part in liveness checks.

The main thread may be blocked in a collective, and the store may stand still. The main thread therefore only
waits for this thread, for a bounded time, and this thread ends a process whose main thread stays blocked.
"""

import json
import linecache
import sys
import threading
from collections.abc import Callable
from types import FrameType

import torch.distributed as dist

from hydraulis.errors import HydraulisError
from hydraulis.runtime.ranks.liveness.check import ANSWER_S, LivenessCheck, describe, lost_rank, reporter

# Time from a call to a living rank's answer, and from a rank's loss to its process's end.
_POLL_S = 0.25
_BEAT_S = 1.0
# Most time that a rank waits for the report, which the first caller makes within `ANSWER_S`.
_REPORT_S = ANSWER_S + 3.0
# Time that the main thread gets to notice the loss itself.
_END_S = 1.0
# Most time that a rank waits for the store to say that it leaves: other ranks would take its end for a loss.
_LEAVE_S = 5.0
# Time after which a rank that works in one function is reported as slow.
_SLOW_S = 30.0
# The module in which the main thread waits for its device.
_HOST_WAIT = "hydraulis.runtime.ranks.host_wait"
# Parts of the source line in which a thread waits for other ranks.
_WAITS = ("wait(", "dist.", "synchronize(")


class Heartbeat:
    """The liveness thread of one rank.

    Attributes:
        then: Function that returns the remedy in the report of a silent rank, such as how to resume.
        notice: Receiver of messages about slow ranks, called by this thread on rank 0; None for no messages.
        timeout_s: Most seconds of a wait for the device; None for no limit.
        is_ending: Function that returns whether torchrun has asked this rank to end.

    Args:
        check: Liveness check, used by this thread alone.
        rank: Number of this rank.
        world_size: Number of ranks; each watches the signs of life of the next one, and the process of the
            next one on its node.
        silence_s: Seconds without a sign of life after which a rank is lost.
        end: Function that prints the report of a loss, None on ranks that print nothing, and ends the
            process; called if the main thread stays blocked.
    """

    def __init__(
        self,
        check: LivenessCheck,
        rank: int,
        world_size: int,
        silence_s: float,
        end: Callable[[HydraulisError | None], None] | None = None,
    ) -> None:
        self._check = check
        self._rank, self._watched = rank, (rank + 1) % world_size
        self._neighbour = rank if check.next_neighbour is None else check.next_neighbour
        self._silence_s, self._end = silence_s, end
        self.then: Callable[[], str] = lambda: "start again"
        self.notice: Callable[[str], None] | None = None
        self.timeout_s: float | None = None
        self.is_ending: Callable[[], bool] = lambda: False
        self._limit: tuple[str, float | None] = ("", None)
        self._activity: str | None = None
        # Time of this thread since the last sign of life, the start of the activity and the limit's.
        self._silent_s = self._active_s = self._limited_s = 0.0
        self._main = threading.main_thread().ident
        self._error: HydraulisError | None = None
        # Whether the main thread has noticed the loss itself.
        self._has_noticed = False
        self._has_failed = False
        # Whether the process that serves the store has ended, and all signs of life with it.
        self._is_cut_off = False
        self._failure = ""
        self._report: str | None = None
        self._wake, self._over, self._leaving = threading.Event(), threading.Event(), threading.Event()
        # Held by the thread that prints the report.
        self._printer = threading.Lock()
        self._last_beat: bytes | None = None

    def start(self) -> None:
        """Sign in, and start the thread."""
        self._check.sign_in()
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    @property
    def lost(self) -> HydraulisError | None:
        """The loss of another rank, as this thread or another rank has found it; None if all ranks live."""
        if self._error is None and self._report is not None:
            return HydraulisError(json.loads(self._report)[1], code="lost_rank")
        return self._error

    def leave(self, *, failed: bool = False, failure: str = "") -> None:
        """End the thread; waits a bounded time for a silent store.

        Args:
            failed: Whether this rank ends by an error of its own.
            failure: The error, which all other ranks then learn of and end by; empty if they meet it
                themselves.
        """
        self._has_failed, self._failure = failed, failure
        self._leaving.set()
        self._wake.set()
        self._over.wait(_LEAVE_S)

    def limit(self, setting: str, seconds: float | None) -> None:
        """Begin a part of the run that may take `seconds`; more is the loss of the ranks that still work.

        Args:
            setting: Name of the setting with the limit.
            seconds: Most time of the part, which ends with the next call; None for any time.
        """
        self._limited_s = 0.0
        self._limit = (setting, seconds)

    def waited_too_long(self, seconds: float) -> str | None:
        """Return why a wait for the device has lasted too long, for `lost_rank`; None if it has not.

        Args:
            seconds: Time of the wait so far.
        """
        if self._is_cut_off and seconds > self._silence_s:
            return (
                "the store of the ranks has ended, and the device waited longer than train.silence_s = "
                f"{self._silence_s:g} s: the report of rank 0's node has the cause"
            )
        if self.timeout_s is not None and seconds > self.timeout_s:
            return (
                f"the device waited longer than train.timeout_s = {self.timeout_s:g} s: a rank that is only "
                "slow needs a longer train.timeout_s"
            )
        return None

    def tell(self, error: HydraulisError) -> None:
        """Let all ranks know of a loss that the main thread has noticed, before `find_lost`.

        If the main thread then blocks, this thread prints the report and ends the process.

        Args:
            error: Error of this rank, with the code `lost_rank`.
        """
        self._has_noticed, self._error = True, error
        self._wake.set()

    def find_lost(self, error: HydraulisError) -> HydraulisError | None:
        """Ask all ranks for an answer after a loss, and return the error that this rank prints.

        Args:
            error: Error of this rank, with the code `lost_rank`.

        Returns:
            The error with the lost ranks; None if another rank prints it. Without an answer of the store, the
            error as it was.
        """
        self.tell(error)
        known = self._over.wait(_REPORT_S)
        # If the other thread prints, it ends the process.
        self._printer.acquire()
        return self._printed() if known and self._report is not None else error

    def _run(self) -> None:
        try:
            while not self._leaving.is_set():
                for _ in range(round(_BEAT_S / _POLL_S)):
                    self._wake.wait(_POLL_S)
                    self._wake.clear()
                    if self._error is not None or self._check.is_called():
                        self._take_part()
                        return
                    if self._leaving.is_set():
                        break
                self._beat()
                self._check_limit()
                self._tell_slow()
            self._check.leave(failed=self._has_failed)
            if self._failure:
                self._check.call(f"rank {self._rank} failed: {self._failure}")
        except RuntimeError as error:
            # The store is gone with its node: every rank reports for itself. A store that only gives no
            # answer may be stopped, and training continues.
            self._is_cut_off = isinstance(error, dist.DistNetworkError)
        finally:
            self._over.set()

    def _beat(self) -> None:
        """Give a sign of life, and count the time of this thread since the last one of the watched rank."""
        self._check.beat()
        beat = self._check.last_beat(self._watched) if self._watched != self._rank else None
        is_silent = beat is not None and beat == self._last_beat
        # Counted in beats of this thread: if the whole job was suspended, no rank is silent.
        self._silent_s = self._silent_s + _BEAT_S if is_silent else 0.0
        self._last_beat = beat
        # The system knows the processes of this node alone: a node's first rank is watched by its last one.
        ended = filter(self._check.has_ended, {self._watched, self._neighbour} - {self._rank})
        if (rank := next(ended, None)) is not None:
            why = (
                f"the process of rank {rank} ended: its report has the cause, or torchrun's; if SIGKILL "
                "ended it, it may have run out of memory"
            )
            self._error = lost_rank(why, self.then())
        elif self._silent_s >= self._silence_s:
            why = (
                f"rank {self._watched} gave no sign of life for train.silence_s = {self._silence_s:g} s: it "
                "was stopped, or its node or its network failed; one that only pauses needs a longer "
                "train.silence_s"
            )
            self._error = lost_rank(why, self.then())

    def _check_limit(self) -> None:
        setting, seconds = self._limit
        self._limited_s += _BEAT_S
        if seconds is not None and self._limited_s > seconds:
            why = (
                f"this part of the run took longer than {setting} = {seconds:g} s: if no rank hangs, it "
                f"needs a longer {setting}"
            )
            self._error = lost_rank(why, self.then())

    def _tell_slow(self) -> None:
        """Say once in a run that a rank works in one function for long, while others may wait for it."""
        if self.notice is None:
            return
        activity = activity_of(self._main)
        is_same = activity is not None and activity == self._activity
        self._active_s = self._active_s + _BEAT_S if is_same else 0.0
        self._activity = activity
        if activity is not None and self._active_s == _SLOW_S and self._check.is_first("slow", activity):
            self._check.notify(f"rank {self._rank} has been in {activity} for {_SLOW_S:g} s")
        told = self._check.notified() if self._rank == 0 else None
        if told is not None:
            self.notice(told)

    def _take_part(self) -> None:
        """Answer a call or make one, and wait for the report."""
        why, error = self._check.reason_of_call(), self._error
        if why is None:
            self._check.call()
        elif why and (error is None or self._has_noticed):
            # The main thread has noticed a broken connection at most; the rank that called knows why.
            self._error = error = lost_rank(f"{why}: its report has more", self.then())
        self._check.answer(None if self._has_noticed else activity_of(self._main))
        if error is not None and self._check.is_first("collect"):
            answers = self._check.collect()
            text = f"{describe(answers)}: {error}"
            self._check.publish(json.dumps([reporter(answers), text]))
        for _ in range(round(_REPORT_S / _POLL_S)):
            self._report = self._check.published()
            if self._report is not None:
                break
            self._check.answer_for_neighbours()
            threading.Event().wait(_POLL_S)
        self._over.set()
        if self._end is not None and not self._leaving.wait(_END_S) and self._printer.acquire(blocking=False):
            self._end(self._printed() if self._report is not None else self._error)

    def _printed(self) -> HydraulisError | None:
        assert self._report is not None
        rank, text = json.loads(self._report)
        return HydraulisError(text, code="lost_rank") if rank == self._rank else None


def activity_of(thread: int | None) -> str | None:
    """Return the function in which a thread works; None if it waits for other ranks or has ended."""
    frame = None if thread is None else sys._current_frames().get(thread)
    while frame is not None and not _is_ours(frame):
        if "torch/distributed" in frame.f_code.co_filename:
            return None
        frame = frame.f_back
    if frame is None or _waits_for_device(frame):
        return None
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    module = str(frame.f_globals["__name__"]).rpartition(".")[2]
    return None if any(wait in line for wait in _WAITS) else f"{module}.{frame.f_code.co_name}"


def _waits_for_device(frame: FrameType | None) -> bool:
    """Return whether a frame or one of its callers is a wait of `host_wait.py`."""
    while frame is not None:
        if str(frame.f_globals.get("__name__")) == _HOST_WAIT:
            return True
        frame = frame.f_back
    return False


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("hydraulis.")


_current: list[tuple[Heartbeat, object]] = []


def set_current(heartbeat: Heartbeat, store: object) -> None:
    """Make a heartbeat that of this process, which has one as it has one default process group.

    Args:
        heartbeat: The heartbeat.
        store: Store to keep until the process ends: rank 0 may serve it to the others.
    """
    _current[:] = [(heartbeat, store)]


def current() -> Heartbeat | None:
    """Return the heartbeat of this process; None without one."""
    return _current[0][0] if _current else None


def limit(setting: str, seconds: float | None) -> None:
    """Limit the next part of the run on this rank (see `Heartbeat.limit`), if it has a heartbeat."""
    heartbeat = current()
    if heartbeat is not None:
        heartbeat.limit(setting, seconds)


def report_slow_ranks(notice: Callable[[str], None] | None) -> None:
    """Send messages about slow ranks to `notice`, if this rank has a heartbeat; None ends them."""
    heartbeat = current()
    if heartbeat is not None:
        heartbeat.notice = notice
