"""Joining the process group that torchrun describes."""

import os
import threading
from datetime import timedelta

import pytest
import torch.distributed as dist

from devices import alone_under_torchrun
from helpers import refused
from hydraulis.errors import HydraulisError
from hydraulis.runtime.ranks import distributed
from hydraulis.runtime.ranks.distributed import joined
from hydraulis.runtime.ranks.liveness import heartbeat
from hydraulis.runtime.ranks.liveness.heartbeat import Heartbeat

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    alone_under_torchrun(monkeypatch)
    return monkeypatch


@pytest.mark.parametrize("name", VARIABLES)
def test_a_process_that_torchrun_did_not_start_is_refused(torchrun: pytest.MonkeyPatch, name: str) -> None:
    torchrun.delenv(name)
    with refused("not_torchrun", name):
        joined(timedelta(seconds=5)).__enter__()
    assert not dist.is_initialized()


@pytest.mark.usefixtures("torchrun")
def test_the_group_lasts_as_long_as_the_context() -> None:
    with joined(timedelta(seconds=20)) as rank:
        assert rank == 0
        assert dist.get_world_size() == 1
        assert dist.get_backend() == "gloo"
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("ranks_here", "given", "told"), [("2", "", "way-out"), ("4", "", ""), ("2", "ib0", "ib0")]
)
def test_gloo_gets_the_interface_to_other_nodes_by_default(
    torchrun: pytest.MonkeyPatch, ranks_here: str, given: str, told: str
) -> None:
    torchrun.setattr(distributed, "node_interface", lambda _: "way-out")
    torchrun.setenv("WORLD_SIZE", "4")
    torchrun.setenv("LOCAL_WORLD_SIZE", ranks_here)
    # Set and taken away, so that it is as it was when the test ends.
    torchrun.setenv(distributed.GLOO_INTERFACE, given)
    if not given:
        del os.environ[distributed.GLOO_INTERFACE]
    distributed._choose_interface()
    assert os.environ.get(distributed.GLOO_INTERFACE, "") == told


@pytest.mark.usefixtures("torchrun")
def test_an_error_leaves_the_group_too() -> None:
    message = "planted"
    with pytest.raises(RuntimeError, match=message), joined(timedelta(seconds=20)):
        raise RuntimeError(message)
    assert not dist.is_initialized()


@pytest.mark.usefixtures("torchrun")
@pytest.mark.parametrize("code", ["config_value", "lost_rank"])
def test_groups_that_do_not_end_hide_no_error(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    ending, told, known, leave = threading.Event(), [], [], Heartbeat.leave
    monkeypatch.setattr(distributed, "_ABORT_S", 0.1)
    monkeypatch.setattr(Heartbeat, "leave", lambda *_, **given: told.append(given))
    monkeypatch.setattr(Heartbeat, "tell", lambda _, error: told.append(error))

    def blocked() -> None:
        known.extend(told)
        ending.wait()

    monkeypatch.setattr(distributed, "_abort_process_group", blocked)
    error = HydraulisError("planted", code=code)
    with refused(code, "planted"), joined(timedelta(seconds=20)):
        raise error
    # The other ranks know first.
    assert known == told
    assert told == [error if code == "lost_rank" else {"failed": True, "failure": f"error [{code}]: planted"}]
    ending.set()
    dist.destroy_process_group()
    own = heartbeat.current()
    assert own is not None
    leave(own)


def test_a_rank_that_fails_waits_for_no_other(torchrun: pytest.MonkeyPatch) -> None:
    destroy, destroyed = dist.destroy_process_group, []

    def waiting() -> None:
        destroyed.append(True)
        destroy()

    torchrun.setattr(dist, "destroy_process_group", waiting)
    with pytest.raises(MemoryError), joined(timedelta(seconds=20)):
        raise MemoryError
    assert not destroyed
    with joined(timedelta(seconds=20)):
        pass
    assert destroyed
