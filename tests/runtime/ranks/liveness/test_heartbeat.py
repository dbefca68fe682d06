"""The liveness thread of a rank: signs of life, calls, reports, and a store that stands still."""

import json
import linecache
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, replace
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from helpers import lacks
from hydraulis.errors import HydraulisError
from hydraulis.runtime.ranks.liveness import heartbeat as module
from hydraulis.runtime.ranks.liveness.check import LivenessCheck, Process
from hydraulis.runtime.ranks.liveness.heartbeat import Heartbeat, activity_of

LOST = HydraulisError("another rank ended", code="lost_rank")
End = Callable[[HydraulisError | None], None]


class Ending:
    """Stands for the end of a process by its liveness thread, and keeps the error that would be printed."""

    def __init__(self) -> None:
        self._printed: list[HydraulisError | None] = []
        self._is_over = threading.Event()

    def __call__(self, error: HydraulisError | None) -> None:
        self._printed.append(error)
        self._is_over.set()

    def comes_within(self, seconds: float) -> bool:
        return self._is_over.wait(seconds)

    def text(self) -> str:
        """Wait for the end, and return the one error."""
        assert self.comes_within(60)
        (error,) = self._printed
        assert error is not None
        return str(error)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_POLL_S", 0.01)
    monkeypatch.setattr(module, "_BEAT_S", 0.01)


class StandingStore(HashStore):
    """A store whose server accepts requests and stays silent, once it is told so."""

    def __init__(self) -> None:
        super().__init__()
        self.stands = False

    def check(self, keys: list[str]) -> bool:
        if self.stands:
            threading.Event().wait()
        return super().check(keys)


def ranks(store: Any, world_size: int, end: End | None = None, silence_s: float = 60.0) -> list[Heartbeat]:
    """Make the threads of all ranks but the last one, which has signed in."""
    checks = [LivenessCheck(store, rank, world_size, ()) for rank in range(world_size)]
    checks[-1].sign_in()
    made = [Heartbeat(check, rank, world_size, silence_s, end) for rank, check in enumerate(checks[:-1])]
    for heartbeat in made:
        heartbeat.start()
    return made


def test_one_rank_reports_the_lost_one_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LivenessCheck.collect, "__defaults__", (0.5,))
    first, second = ranks(HashStore(), 3)
    found: list[HydraulisError | None] = []
    other = threading.Thread(target=lambda: found.append(second.find_lost(LOST)))
    other.start()
    printed = first.find_lost(LOST)
    other.join()
    assert found == [None]
    assert printed is not None
    assert printed.code == "lost_rank"
    assert str(printed) == f"no answer from rank 2 ({Process.own().host}): another rank ended"


def test_a_blocked_rank_answers_and_is_ended_and_the_lowest_one_reports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LivenessCheck.collect, "__defaults__", (0.5,))
    monkeypatch.setattr(module, "_END_S", 0.01)
    end = Ending()
    _, noticing = ranks(HashStore(), 3, end)
    # Rank 0 is blocked: only its thread takes part, and prints what rank 1 found.
    assert noticing.find_lost(LOST) is None
    assert end.text().endswith(": another rank ended")
    assert "no answer from rank 2" in end.text()


@pytest.mark.parametrize(("error", "limit_s"), [(dist.DistNetworkError, 5.0), (dist.DistStoreError, 60.0)])
def test_the_end_of_the_store_limits_waits_for_the_device_by_the_silence(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], limit_s: float
) -> None:
    def fail(_: LivenessCheck) -> None:
        raise error

    (only,) = ranks(HashStore(), 2, silence_s=5.0)
    only.timeout_s = 60.0
    assert only.waited_too_long(59.0) is None
    monkeypatch.setattr(LivenessCheck, "beat", fail)
    assert only._over.wait(60)
    assert only.waited_too_long(limit_s) is None
    reason = only.waited_too_long(limit_s + 1)
    assert reason is not None
    assert f"{'train.silence_s' if limit_s == 5.0 else 'train.timeout_s'} = {limit_s:g} s: " in reason
    assert only.lost is None


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], tuple[Heartbeat, Callable[[], str]]]:
    """Return a function that starts rank 0 of two, and returns its thread and a wait for its end."""
    monkeypatch.setattr(LivenessCheck.collect, "__defaults__", (0.1,))
    monkeypatch.setattr(module, "_END_S", 0.01)

    def started(silence_s: float) -> tuple[Heartbeat, Callable[[], str]]:
        end = Ending()
        (only,) = ranks(HashStore(), 2, end, silence_s)
        only.then = lambda: "resume run 7"
        return only, end.text

    return started


def test_a_rank_without_signs_of_life_is_reported_with_the_remedy(
    ended: Callable[[float], tuple[Heartbeat, Callable[[], str]]],
) -> None:
    _, text = ended(0.05)
    error = text()
    assert "no answer from rank 1" in error
    assert "rank 1 gave no sign of life for train.silence_s = 0.05 s: " in error
    assert lacks(error, "connection", "train.timeout_s") == ["connection", "train.timeout_s"]
    assert error.endswith("; resume run 7")


def test_a_part_of_the_run_that_takes_too_long_is_a_loss(
    ended: Callable[[float], tuple[Heartbeat, Callable[[], str]]],
) -> None:
    only, text = ended(60.0)
    only.limit("train.step_timeout_s", 0.05)
    error = text()
    assert "took longer than train.step_timeout_s = 0.05 s: " in error
    assert "needs a longer train.step_timeout_s" in error
    assert lacks(error, "connection", "train.timeout_s") == ["connection", "train.timeout_s"]
    assert error.endswith("; resume run 7")


def test_a_rank_that_works_for_long_is_reported_once_on_rank_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SLOW_S", 3 * 0.01)
    monkeypatch.setattr(module, "_BEAT_S", 0.01)
    monkeypatch.setattr(module, "activity_of", lambda _: "saver.finish")
    told: list[str] = []
    is_told = threading.Event()

    def notice(text: str) -> None:
        told.append(text)
        is_told.set()

    first, second = ranks(HashStore(), 3)
    second.notice = lambda _: told.append("on rank 1")
    assert not told
    first.notice = notice
    assert is_told.wait(60)
    first.leave()
    second.leave()
    (text,) = told
    assert text.endswith(" has been in saver.finish for 0.03 s")


def test_a_blocked_store_does_not_block_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REPORT_S", 0.2)
    monkeypatch.setattr(module, "_END_S", 0.05)
    store = StandingStore()
    (only,) = ranks(store, 2)
    store.stands = True
    assert only.find_lost(LOST) is LOST
    (leaving,) = ranks(StandingStore(), 2)
    store.stands = True
    leaving.leave()


def test_without_a_store_each_rank_reports() -> None:
    class GoneStore(HashStore):
        def check(self, _: list[str]) -> bool:
            message = "Broken pipe"
            raise RuntimeError(message)

    for heartbeat in ranks(GoneStore(), 3):
        assert heartbeat.find_lost(LOST) is LOST


def test_the_end_of_a_process_is_seen_by_the_rank_before_it_on_its_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LivenessCheck.collect, "__defaults__", (0.1,))
    monkeypatch.setattr(module, "_END_S", 0.01)
    store, end = HashStore(), Ending()
    # Rank 2 is the first one of its node, and rank 1 of another node watches its signs of life.
    of_node = [LivenessCheck(store, rank, 4, (2, 3)) for rank in (2, 3)]
    assert [check.next_neighbour for check in of_node] == [3, 2]
    heartbeat = Heartbeat(of_node[1], 3, 4, 60.0, end)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        store.set("process/2", json.dumps(astuple(replace(Process.own(), pid=process.pid))))
        heartbeat.start()
        assert not end.comes_within(0.1)
        process.kill()
    assert end.text().startswith(f"rank 2 ({Process.own().host}) ended; ")
    assert "the process of rank 2 ended: its report has the cause" in end.text()


def test_a_rank_that_has_told_its_loss_and_is_blocked_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LivenessCheck.collect, "__defaults__", (0.1,))
    monkeypatch.setattr(module, "_END_S", 0.01)
    store, end = HashStore(), Ending()
    (only,) = ranks(store, 2, end)
    # Its main thread is in a function of its own, but it is not the one that the others wait for.
    monkeypatch.setattr(module, "activity_of", lambda _: "distributed.joined")
    only.tell(LOST)
    assert end.text().endswith(": another rank ended")
    assert json.loads(store.get("state/0")) == ["waiting", ""]


def test_the_failure_of_another_rank_explains_a_broken_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LivenessCheck.collect, "__defaults__", (0.1,))
    store = HashStore()
    (only,) = ranks(store, 2)
    LivenessCheck(store, 1, 2, ()).call("rank 1 failed: error [out_of_device_memory]")
    only.tell(LOST)
    printed = only.find_lost(LOST)
    assert "rank 1 failed: error [out_of_device_memory]: its report has more" in str(printed)


def test_a_rank_that_leaves_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LivenessCheck.collect, "__defaults__", (0.1,))
    store = HashStore()
    first, second = ranks(store, 3)
    second.leave()
    assert store.get("state/1")
    printed = first.find_lost(LOST)
    assert printed is not None
    assert "rank 1" not in str(printed)


def test_a_rank_that_failed_by_itself_is_named_at_once() -> None:
    store = HashStore()
    first, second, _ = ranks(store, 4)
    second.leave(failed=True)
    LivenessCheck(store, 3, 4, ()).leave()
    printed = first.find_lost(LOST)
    assert printed is not None
    assert str(printed) == f"rank 1 ({Process.own().host}) ended: another rank ended"


def test_a_thread_waits_or_works(monkeypatch: pytest.MonkeyPatch) -> None:
    here = threading.get_ident()

    def activity() -> str | None:
        with ThreadPoolExecutor(1) as other:
            return other.submit(activity_of, here).result()

    # No frame of the package: neither is known.
    assert activity() is None
    assert activity_of(None) is None
    namespace: dict[str, Any] = {"__name__": "hydraulis.made_up"}
    exec(compile("def compute(f):\n    return f()\n", "made_up.py", "exec"), namespace)
    monkeypatch.setattr(linecache, "getline", lambda *_: "return f()")
    assert namespace["compute"](activity) == "made_up.compute"
    monkeypatch.setattr(linecache, "getline", lambda *_: "request.wait()")
    assert namespace["compute"](activity) is None
