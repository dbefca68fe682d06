"""The liveness check: the states of ranks, the text that names the lost ones, and errors of a lost rank."""

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from hydraulis.runtime.ranks.liveness.check import (
    ABSENT,
    ENDED,
    LEFT,
    SILENT,
    STOPPED,
    WAITING,
    WORKING,
    Answer,
    LivenessCheck,
    Process,
    broken_connection,
    describe,
    is_lost,
    lost_rank,
    reporter,
)

only_linux = pytest.mark.skipif(not Path("/proc/self/ns/pid").exists(), reason="needs Linux's /proc")


def checks(store: HashStore, world_size: int = 3) -> list[LivenessCheck]:
    made = [LivenessCheck(store, rank, world_size, range(world_size)) for rank in range(world_size)]
    for check in made:
        check.sign_in()
    return made


def test_a_rank_without_an_answer_is_silent_and_the_first_living_one_reports() -> None:
    first, second, _ = checks(HashStore())
    assert not first.is_called()
    second.call()
    assert first.is_called()
    first.leave()
    second.answer("save")
    answers = second.collect(0.0)
    assert [answer.state for answer in answers] == [LEFT, WORKING, SILENT]
    assert {answer.host for answer in answers} == {socket.gethostname()}
    assert reporter(answers) == 1
    assert describe(answers) == f"no answer from rank 2 ({socket.gethostname()})"


def test_answers_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *late = checks(HashStore())
    first.answer(None)
    monkeypatch.setattr(
        "hydraulis.runtime.ranks.liveness.check.time.sleep", lambda _: late.pop().answer(None)
    )
    assert [answer.state for answer in first.collect(60.0)] == [WAITING] * 3
    assert late == []


def test_ranks_that_never_signed_in_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydraulis.runtime.ranks.liveness.check._SIGN_IN_S", 0.0)
    check = LivenessCheck(HashStore(), 0, 3, range(3))
    check.sign_in()
    check.answer(None)
    assert describe(check.collect(60.0)) == "ranks 1, 2 had not joined"


def test_one_rank_collects_and_all_read_its_report() -> None:
    first, second, _ = checks(HashStore())
    assert (second.is_first("collect"), first.is_first("collect")) == (True, False)
    assert first.is_first("slow", "save")
    assert first.published() is None
    second.publish("rank 2 ended")
    assert first.published() == "rank 2 ended"


def test_beats_are_read_until_a_rank_leaves() -> None:
    store = HashStore()
    alone = LivenessCheck(store, 0, 2, range(2))
    assert alone.last_beat(1) is None
    _, second = checks(store, 2)
    before = alone.last_beat(1)
    second.beat()
    assert None is not before != alone.last_beat(1)
    second.leave()
    assert alone.last_beat(1) is None


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        (
            [Answer(WAITING), Answer(ENDED, host="a"), Answer(SILENT, host="b"), Answer(SILENT, host="b")],
            "rank 1 (a) ended; no answer from ranks 2, 3 (b)",
        ),
        (
            [Answer(ENDED, host="a"), Answer(ENDED, host="b"), Answer(WORKING, "step", "b")],
            "rank 0 (a), rank 1 (b) ended",
        ),
        (
            [Answer(WAITING), Answer(STOPPED, host="a")],
            "rank 1 (a) stopped by a signal (SIGCONT continues it)",
        ),
        (
            [Answer(WORKING, "take", "a"), Answer(WAITING), Answer(LEFT)],
            "all ranks answer, and these are still at work: rank 0 (a) in take",
        ),
        ([Answer(WORKING, "step"), Answer(WORKING, "step")], "all ranks answer again"),
        ([Answer(WAITING), Answer(WAITING)], "all ranks answer again"),
    ],
)
def test_the_report_states_the_last_known_facts_of_each_rank(answers: list[Answer], text: str) -> None:
    assert describe(answers) == text


@only_linux
def test_a_node_reports_the_stopped_and_ended_processes_of_its_ranks() -> None:
    store = HashStore()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = replace(Process.own(), pid=child.pid)
        assert process.state() is None
        child.send_signal(signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        assert process.state() == STOPPED
        child.kill()
        # The parent has not asked for the exit code yet.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert process.state() == ENDED
        child.wait()
        assert process.state() == ENDED
        store.set("process/1", json.dumps(astuple(process)))
    check = LivenessCheck(store, 0, 3, range(2))
    check.sign_in()
    check.answer(None)
    assert [answer.state for answer in check.collect(0.0)] == [WAITING, ENDED, ABSENT]


@only_linux
def test_a_node_reports_no_process_of_other_nodes_and_namespaces() -> None:
    own = Process.own()
    assert own.state() is None
    assert own.boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    gone = 2**22 + 1  # above the system's highest process number, proc_sys_kernel(5)
    ended = replace(own, pid=gone)
    assert ended.state() == ENDED
    # A node of the same name, such as one started from a copy of this one's disk, differs by its start alone.
    others: dict[str, Any] = {
        "host": "elsewhere",
        "namespace": "pid:[0]",
        "boot": "13d0ce8f-95a9-4b2d-a4b5-7b5b0fb8e2a4",
    }
    for field, value in others.items():
        assert replace(ended, **{field: value}).state() is None, field


@only_linux
def test_an_end_that_shows_after_the_answer_is_noticed() -> None:
    store = HashStore()
    check = LivenessCheck(store, 0, 2, range(2))
    check.sign_in()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        store.set("process/1", json.dumps(astuple(replace(Process.own(), pid=child.pid))))
        check.answer(None)
        assert [answer.state for answer in check.collect(0.0)] == [WAITING, SILENT]
        child.kill()
        child.wait()
    assert [answer.state for answer in check.collect(60.0)] == [WAITING, ENDED]


def test_messages_reach_rank_zero_once_and_in_order() -> None:
    first, second, third = checks(HashStore())
    assert first.notified() is None
    second.notify("one")
    third.notify("two")
    assert [first.notified() for _ in range(3)] == ["one", "two", None]


@only_linux
def test_the_end_of_a_rank_that_signed_in_later_is_noticed() -> None:
    store = HashStore()
    first = LivenessCheck(store, 0, 2, range(2))
    first.sign_in()
    assert not first.has_ended(1)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        store.set("process/1", json.dumps(astuple(replace(Process.own(), pid=process.pid))))
        assert not first.has_ended(1)
        process.kill()
        process.wait()
    assert first.has_ended(1)


# As gloo of torch 2 says it.
CLOSED = (
    "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
    "[127.0.0.1]:6041. This is typically caused by a remote worker crashing. GLHF!"
)
# As torch 2.13 says it with NCCL's own text.
NO_MEMORY_FILE = """NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled system error (run with \
NCCL_DEBUG=INFO for details), NCCL version 2.29.3
ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.
Last error:
Error while creating shared memory segment /dev/shm/nccl-a (size 9637888), error: No space left on device (28)
"""
SLOW = "[../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 60000ms for recv operation to complete"


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (RuntimeError(CLOSED), "Connection closed by peer [127.0.0.1]:6041"),
        (RuntimeError(SLOW), "Timed out waiting 60000ms for recv operation to complete"),
        (
            dist.DistBackendError("NCCL error: remote process exited\nmore"),
            "NCCL error: remote process exited",
        ),
        (
            dist.DistBackendError(NO_MEMORY_FILE),
            "NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled system error (run with NCCL_DEBUG=INFO for "
            "details), NCCL version 2.29.3: Error while creating shared memory segment /dev/shm/nccl-a (size "
            "9637888), error: No space left on device (28)",
        ),
    ],
)
def test_a_closed_connection_is_a_lost_rank(error: Exception, why: str) -> None:
    assert is_lost(error)
    made = broken_connection(error, "go on from there")
    assert made.code == "lost_rank"
    assert f"the connection to another rank broke ({why}): " in str(made)
    assert str(made).endswith("; go on from there")


def test_a_loss_without_a_broken_connection_has_its_own_cause_and_remedy() -> None:
    made = lost_rank("rank 3 failed: too much", "go on from there")
    assert (made.code, str(made)) == ("lost_rank", "rank 3 failed: too much; go on from there")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 of gloo/transport/"),
        ValueError(CLOSED),
        # This rank's own device is full: the other ranks are to learn that.
        dist.DistBackendError("ncclUnhandledCudaError: \nLast error:\nCuda failure 2 'out of memory'"),
    ],
)
def test_any_other_error_is_no_lost_rank(error: Exception) -> None:
    assert not is_lost(error)
